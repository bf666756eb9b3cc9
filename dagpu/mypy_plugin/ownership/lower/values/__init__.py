"""Where values lie: the places of components and items, under all names and in all containers."""
