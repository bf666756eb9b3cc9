"""The vocabulary of all layers: errors, origins, element types, layouts, critical sections. Imports no other layer."""
