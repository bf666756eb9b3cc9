"""Lowers `try`: handlers, and `finally` suites."""

from mypy.nodes import TryStmt

from dagpu.mypy_plugin.ownership.control_flow import BasicBlock
from dagpu.mypy_plugin.ownership.frames import Finally
from dagpu.mypy_plugin.ownership.graph_builder import GraphBuilder, statement
from dagpu.mypy_plugin.ownership.lower.statements.lower_assignments import declare


@statement(TryStmt)
def _try(b: GraphBuilder, s: TryStmt) -> None:
    b.module.deliberate.record_try(s.types, s.body)
    outer, end = b.handler, b.block()
    inner = outer
    if s.finally_body is not None:
        inner = b.block()
        here, b.current = b.current, inner
        b.suite(s.finally_body)
        b.throw()
        b.current = here
        frame = Finally(s.finally_body, outer)
        b.frames.append(frame)
    handlers = b.block()
    with b.handled_by(handlers if s.handlers else inner):
        b.split()
        b.suite(s.body)
    with b.handled_by(inner):
        b.suite(s.else_body)
        b.jump(end)
        ended: list[BasicBlock] = []
        for caught, variable, suite in zip(s.types, s.vars, s.handlers, strict=True):
            b.current = handlers
            begin = b.split()
            for block in ended if s.is_star else ():  # an exception group may have come to that handler, too
                block.next.append(begin)
            if caught is not None:
                b.read(caught)
            if variable is not None:
                declare(b, variable)
            b.suite(suite)
            ended.append(b.current)
            b.jump(end)
    if inner is not None:
        handlers.next.append(inner)
    b.current = end
    if s.finally_body is not None:
        b.frames.pop()
        b.suite(s.finally_body)
