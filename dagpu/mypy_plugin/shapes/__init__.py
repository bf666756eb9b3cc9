"""The rules on shapes: values of shapes in a function, and checks of partitions and output arguments."""
