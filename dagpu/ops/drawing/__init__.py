"""Drawings of ops and plans, as SVG and in Graphviz DOT."""
