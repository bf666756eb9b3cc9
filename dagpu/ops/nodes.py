"""The closed set of ops. A `match` over `Node` that ends in `assert_never` is how lowering stays total."""

from typing import Any, TypeAlias

from dagpu.ops.compose import HostCall, Map, On, Shared, Then, ToHost, Unzip, Value, Zip
from dagpu.ops.graph import GraphLaunch
from dagpu.ops.launch import Launch
from dagpu.ops.memory import Alloc, Copy, FromHost

Node: TypeAlias = (
    Value[Any]
    | Then[Any]
    | Map[Any]
    | Zip[Any]
    | Unzip[Any]
    | Shared[Any]
    | Launch
    | GraphLaunch
    | Alloc[Any]
    | FromHost[Any]
    | ToHost[Any]
    | Copy[Any]
    | HostCall[Any]
    | On[Any]
)
