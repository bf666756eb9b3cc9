"""`Node`, the closed set of ops. Lowering handles every op by a `match` over it that ends in `assert_never`."""

from typing import Any, TypeAlias

from dagpu.ops import base
from dagpu.ops.compose import (
    FIRST,
    LAST,
    SHARE,
    UNCUT,
    Cut,
    Cutoff,
    HostCall,
    Inspect,
    Launch,
    Map,
    On,
    Reshape,
    Shared,
    Then,
    ToHost,
    Unzip,
    Value,
    Zip,
    part_of,
    placed,
    produces_host_data,
    reread_as,
    scheduled,
    shared,
    unzip,
)
from dagpu.ops.creation import Alloc, Copy, FromHost
from dagpu.ops.drawing import name_of_call, picture, to_dot
from dagpu.ops.graph import GraphLaunch
from dagpu.ops.source_op import Source

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
    | Source[Any]
    | Cutoff[Any]
)

base.NODES.set(
    base.Nodes(
        then=Then,
        map=Map,
        host_call=HostCall,
        on=On,
        placed=placed,
        scheduled=scheduled,
        shared=shared,
        unzip=unzip,
        to_host=ToHost,
        inspect=Inspect,
        cut=Cut,
        reshape=Reshape,
        part=part_of,
        reread=reread_as,
        first=FIRST,
        last=LAST,
        uncut=UNCUT,
        share=SHARE,
        produces_host_data=produces_host_data,
        name_of_call=name_of_call,
        to_dot=to_dot,
        to_svg=picture,
    )
)
