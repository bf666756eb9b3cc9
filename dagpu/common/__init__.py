"""Definitions that all layers share: errors, origins, element types, layouts, critical sections. Imports no layer."""
