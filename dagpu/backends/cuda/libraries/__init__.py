"""Work of libraries: the commands that call them, and the checks of the bodies of foreign ops."""
