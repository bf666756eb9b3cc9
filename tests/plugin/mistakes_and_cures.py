"""Programs that the mypy plugin refuses, and each of them with the cures that its message names."""

HEAD = """from functools import partial
import numpy as np
import trio
from dagpu import *
from tests.typing.plugin.kernels import add, eat, maybe, saxpy, scale, split, total, vector
LAST = "__global__ void last(Tile<float, 2> y, View<const float, 2> a, View<const float, 1> b) {}"
"""

MISTAKES = """
## dagpu-use-after-move
x = vector()
add(zeros((8,)).partition((4,)), x, ones((8,))).sync()
print(x.shape)
# use what the move gave back
x = vector()
y = eat(x)
print(y.shape)
# lend it with .borrow()
x = vector()
add(zeros((8,)).partition((4,)), x.borrow(), x.borrow()).sync()
print(x.shape)
# share it with .share()
x = vector().share()
add(zeros((8,)).partition((4,)), x, x).sync()
print(x.shape)

## dagpu-use-after-move
def take(t: Tensor[f32]) -> None:
    eat(t)
x = vector()
take(x)
print(x.shape)
# pass a copy, dup(x.borrow()).sync()
def take(t: Tensor[f32]) -> None:
    eat(t)
x = vector()
take(dup(x.borrow()).sync())
print(x.shape)
# let the parameter be a TensorRef: .borrow()
def look(t: TensorRef[f32]) -> None:
    print(t.to_host().sync())
x = vector()
look(x.borrow())
print(x.shape)

## dagpu-use-after-move
def take(t: Tensor[f32] | TensorRef[f32]) -> None:
    add(zeros((8,)).partition((4,)), t, ones((8,))).sync()
x = vector()
take(x)
print(x.shape)
# or lend it with .borrow()
def take(t: Tensor[f32] | TensorRef[f32]) -> None:
    add(zeros((8,)).partition((4,)), t, ones((8,))).sync()
x = vector()
take(x.borrow())
print(x.shape)

## dagpu-use-after-move
def take(t: Tensor[f32] | SharedTensor[f32]) -> None:
    add(zeros((8,)).partition((4,)), t, ones((8,))).sync()
x = vector()
take(x)
print(x.shape)
# or share it with .share()
def take(t: Tensor[f32] | SharedTensor[f32]) -> None:
    add(zeros((8,)).partition((4,)), t, ones((8,))).sync()
x = vector().share()
take(x)
print(x.shape)

## type-var
array.matmul(zeros((2, 2)), zeros((2, 2), f64)).sync()
# Convert one: convert(t, f32)
array.matmul(zeros((2, 2)), convert(zeros((2, 2), f64).sync(), f32)).sync()

## dagpu-not-ready
x = maybe()
if x:
    print(x.shape)
# x is not None
x = maybe()
if x is not None:
    print(x.shape)
# get the contents with .to_host().sync()
x = vector()
if x.to_host().sync().any():
    print("some")

## dagpu-not-ready
op = next(iter([None, zeros((8,))]))
if op:
    op.sync()
# Run it, and test its result: op.sync()
if zeros((8,)).to_host().sync().any():
    print(1)
# op is not None
op = next(iter([None, zeros((8,))]))
if op is not None:
    op.sync()

## dagpu-use-after-move
x = vector()
plus = expr(f32, f32)(lambda a, b: a + b)
plus(x, 1.0).sync()
print(x.shape)
# use what the move gave back
x = vector()
plus = expr(f32, f32)(lambda a, b: a + b)
y = plus(x, 1.0).sync()
print(y.shape)
# lend it with .borrow()
x = vector()
plus = expr(f32, f32)(lambda a, b: a + b)
plus(x.borrow(), 1.0).sync()
print(x.shape)
# share it with .share()
x = vector().share()
plus = expr(f32, f32)(lambda a, b: a + b)
plus(x, 1.0).sync()
print(x.shape)

## dagpu-use-after-move
x = np.ones(8, np.float32)
t = adopt(x)
print(x.sum(), t)
# use what the move gave back
x = np.ones(8, np.float32)
t = adopt(x)
print(t.to_host().sync().sum())
# copy it with from_array(x)
x = np.ones(8, np.float32)
t = from_array(x).sync()
print(x.sum(), t)
# share it with share_array(x)
x = np.ones(8, np.float32)
t = share_array(x)
print(x.sum(), t)

## dagpu-use-after-move
x = vector()
scale(x.partition((4,)), 2.0).sync()
print(x.shape)
# use what the move gave back
x = vector()
p, _ = scale(x.partition((4,)), 2.0).sync()
print(p.unpartition().shape)
# lend it for writing: .borrow_mut().partition(tile)
x = vector()
scale(x.borrow_mut().partition((4,)), 2.0).sync()
print(x.shape)
# write to memory of its own, empty(shape).partition(tile), and read this
x = vector()
scale(empty((8,)).partition((4,)), 2.0).sync()
print(x.shape)

## dagpu-use-after-move
x = vector()
m = x.borrow_mut()
scale(m.partition((4,)), 2.0).sync()
print(m.shape)
# use what the move gave back
x = vector()
m = x.borrow_mut()
p, _ = scale(m.partition((4,)), 2.0).sync()
print(p.unpartition().shape)
# lend the tensor again with .borrow_mut()
x = vector()
scale(x.borrow_mut().partition((4,)), 2.0).sync()
print(x.borrow_mut().shape)

## dagpu-use-after-move
s = vector().share()
t = s.try_unwrap()
print(s.shape, t.shape)
# use what the move gave back
s = vector().share()
t = s.try_unwrap()
print(t.shape)
# share that again with .share()
s = vector().share()
s = s.try_unwrap().share()
print(s.shape)

## dagpu-use-after-move
p = vector().partition((4,))
scale(p, 2.0).sync()
print(p.grid)
# use what the move gave back
p = vector().partition((4,))
p, _ = scale(p, 2.0).sync()
print(p.grid)

## dagpu-use-after-move
op = dup(vector())
op.sync()
op.sync()
# Build it again for each run
dup(vector()).sync()
dup(vector()).sync()
# remember its result with .shared()
op = dup(vector()).shared()
op.sync()
op.sync()

## dagpu-use-after-move
x = vector()
take = partial(eat, x)
take()
take()
# Pass the handle at the call
take = partial(eat)
take(vector())
take(vector())
# bind a shared tensor, which may be passed again: t.share()
def size(s: SharedTensor[f32]) -> int:
    return s.size
take = partial(size, vector().share())
take()
take()

## dagpu-use-after-move
with lend(np.ones(8, np.float32)) as r:
    print(r.shape)
print(dup(r).sync())
# Use it inside the block
with lend(np.ones(8, np.float32)) as r:
    print(r.shape)
    print(dup(r).sync())
# copy it there: dup(r).sync()
with lend(np.ones(8, np.float32)) as r:
    x = dup(r).sync()
print(x.shape)

## dagpu-borrow-escape
def lent() -> TensorRef[f32]:
    with lend(np.ones(8, np.float32)) as r:
        return r
print(lent().shape)
# Use it inside the block
def size() -> int:
    with lend(np.ones(8, np.float32)) as r:
        return r.size
print(size())
# copy it there: dup(r).sync()
def copied() -> Tensor[f32]:
    with lend(np.ones(8, np.float32)) as r:
        return dup(r).sync()
print(copied().shape)

## dagpu-conflicting-borrow
t = vector()
g = add(zeros((8,)).partition((4,)), t.borrow(), t.borrow()).first().unpartition()
saxpy(t.borrow_mut().partition((4,)), 1.0, g).sync()
# Drop the first borrow before the second
t = vector()
g = add(zeros((8,)).partition((4,)), t.borrow(), t.borrow()).first().unpartition().sync()
saxpy(t.borrow_mut().partition((4,)), 1.0, g).sync()
# lend it once, for writing
t = vector()
g, m, _ = add(zeros((8,)).partition((4,)), t.borrow_mut(), ones((8,))).unzip()
saxpy(m.partition((4,)), 1.0, g.unpartition()).sync()
# write to a copy that was made before, dup(t.borrow()).sync()
t = vector()
copy = dup(t.borrow()).sync()
g = add(zeros((8,)).partition((4,)), t.borrow(), t.borrow())
saxpy(copy.partition((4,)), 1.0, g.first().unpartition()).sync()

## dagpu-conflicting-borrow
t = vector()
r = t.borrow()
eat(t)
print(r.shape)
# Use the borrow before the tensor moves
t = vector()
r = t.borrow()
print(r.shape)
eat(t)
# share() the tensor
s = vector().share()
print(s.shape)

## dagpu-borrow-escape
def inner() -> TensorRef[f32]:
    t = vector()
    return t.borrow()
# share() the tensor and pass that on
def inner() -> SharedTensor[f32]:
    t = vector()
    return t.share()
# hand the tensor itself over
def inner() -> Tensor[f32]:
    t = vector()
    return t

## dagpu-unused-op
zeros((8,))
# op.sync()
zeros((8,)).sync()
# await op
async def main() -> None:
    await zeros((8,))
# spawn(nursery, op)
async def main() -> None:
    async with trio.open_nursery() as nursery:
        spawn(nursery, zeros((8,)))
# leave it out
pass

## dagpu-feed-escape
async def main() -> None:
    async with flow([1]) as feed:
        pass
    print(await feed.next())
# Ask it inside the block and pass its values on
async def main() -> None:
    async with flow([1]) as feed:
        first = await feed.next()
    print(first)
# pass the flow on and open that again
async def main() -> None:
    numbers = flow([1])
    async with numbers as feed:
        pass
    async with numbers as feed:
        print(await feed.next())

## dagpu-feed-escape
async def main() -> None:
    async def ask(feed: Feed[int]) -> None:
        print(await feed.next())
    async with trio.open_nursery() as nursery, flow([1]) as feed:
        nursery.start_soon(ask, feed)
# open a nursery whose tasks ask the feed inside the block
async def main() -> None:
    async def ask(feed: Feed[int]) -> None:
        print(await feed.next())
    async with flow([1]) as feed, trio.open_nursery() as nursery:
        nursery.start_soon(ask, feed)

## dagpu-unused-op
flow([1, 2]).map(print)
# async with flow as feed
async def main() -> None:
    async with flow([1, 2]).map(print) as feed:
        await feed.next()
# await flow.into(source)
async def main() -> None:
    await flow([1, 2]).into(source(0))
# leave it out
pass

## dagpu-graph-node
with CudaGraph.scope(current_device().stream()) as scope:
    scope.record(zeros((8,)))
# a kernel on t.borrow_mut().partition(tile)
t = vector()
with CudaGraph.scope(current_device().stream()) as scope:
    scope.record(scale(t.borrow_mut().partition((4,)), 2.0))
# memcpy
t, u = vector(), vector()
with CudaGraph.scope(current_device().stream()) as scope:
    scope.record(memcpy(t.borrow_mut(), u.borrow()))
# fill
t = vector()
with CudaGraph.scope(current_device().stream()) as scope:
    scope.record(fill(t.borrow_mut(), 1))

## dagpu-sees
@kernel(cuda=LAST, sees={"b": Here()})
def last(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...
# Say for each axis of the input which axis of the output it follows: (Along(0), None)
@kernel(cuda=LAST, sees={"b": (Along(0),)})
def last(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...

## dagpu-sees
@kernel(cuda=LAST, sees={"a": Around(1)})
def last(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...
# Give one margin for each axis: Around(1, 1)
@kernel(cuda=LAST, sees={"a": Around(1, 1)})
def last(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...

## dagpu-sees
@kernel(cuda=LAST, sees={"a": (Along(0),)})
def last(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...
# Give one part for each axis of the input
@kernel(cuda=LAST, sees={"a": (Along(0), None)})
def last(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...

## dagpu-sees
@kernel(cuda=LAST, sees={"a": (Along(1), Along(2))})
def last(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...
# Count the output's axes from 0
@kernel(cuda=LAST, sees={"a": (Along(0), Along(1))})
def last(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...

## dagpu-sees
@kernel(cuda=LAST, sees={"a": Around(1, -1)})
def last(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...
# Give a number of elements, 0 or more
@kernel(cuda=LAST, sees={"a": Around(1, 0)})
def last(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...

## dagpu-sees
@kernel(cuda=LAST, sees={"y": Here(), "a": Here()})
def last(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...
# Name inputs alone
@kernel(cuda=LAST, sees={"a": Here()})
def last(y: Out[f32], a: In[f32], b: In[f32]) -> None: ...

## dagpu-source-part
source(vector()).write(slice(0, 8, 2), np.zeros(4, f32))
# without a step
source(vector()).write(slice(0, 4), np.zeros(4, f32))

## dagpu-source-part
source(vector()).write(slice(4, 0), np.zeros(4, f32))
# within the shape
source(vector()).write(slice(0, 4), np.zeros(4, f32))

## dagpu-source-part
source(vector()).write(slice(0, 4), zeros((2,)).sync())
# Give data of the shape and element type of the part
source(vector()).write(slice(0, 4), zeros((4,)).sync())

## dagpu-source-value
x = vector()
print(source((x.borrow(), 2.0)).revision)
# Make a source of each: of a copy, dup(t)
x = vector()
print(source(dup(x.borrow()).sync()).revision, source(2.0).revision)
# or of the tensor itself
x = vector()
print(source(x).revision, source(2.0).revision)

## dagpu-source-value
print(source((vector().share(), 2.0)).revision)
# Make a source of each
print(source(vector().share()).revision, source(2.0).revision)

## dagpu-output-partition
scale(vector(), 2.0).sync()
# Cut it into tiles: .partition(tile)
scale(vector().partition((4,)), 2.0).sync()

## dagpu-output-partition
scale(vector().share(), 2.0).sync()
# write to a copy, dup(t).partition(tile)
scale(dup(vector().share()).partition((4,)), 2.0).sync()
# an empty(...).partition(tile)
scale(empty((8,)).partition((4,)), 2.0).sync()

## dagpu-output-partition
t = vector()
scale(t.borrow(), 2.0).sync()
# .borrow_mut().partition(tile)
t = vector()
scale(t.borrow_mut().partition((4,)), 2.0).sync()

## arg-type
saxpy(vector().partition((4,)), 1.0, vector().partition((4,))).sync()
# .unpartition()
saxpy(vector().partition((4,)), 1.0, vector().partition((4,)).unpartition()).sync()

## arg-type
saxpy(vector().partition((4,)), 1.0, ones((8,), f64)).sync()
# Convert it: convert(t, f32)
saxpy(vector().partition((4,)), 1.0, convert(ones((8,), f64), f32)).sync()
# convert(t, f32)
saxpy(vector().partition((4,)), 1.0, convert(ones((8,), f64).sync(), f32)).sync()

## arg-type
saxpy(vector().partition((4,)), 1.0, [1.0] * 8).sync()
# from_host(np.asarray(..., f32))
saxpy(vector().partition((4,)), 1.0, from_host(np.asarray([1.0] * 8, f32))).sync()

## dagpu-output-partition
saxpy(scale(vector().partition((4,)), 2.0), 1.0, vector()).sync()
# .first()
saxpy(scale(vector().partition((4,)), 2.0).first(), 1.0, vector()).sync()
# .unzip()
saxpy(scale(vector().partition((4,)), 2.0).unzip()[0], 1.0, vector()).sync()

## dagpu-output-partition
p = zeros((8,)).partition((4,))
split(p, p, ones((8,))).sync()
# empty(shape).partition(tile)
split(empty((8,)).partition((4,)), empty((8,)).partition((4,)), ones((8,))).sync()

## dagpu-output-partition
zeros((10,)).partition((4,)).sync()
# Choose a tile that divides it
zeros((10,)).partition((5,)).sync()
# say partial=True
zeros((10,)).partition((4,), partial=True).sync()

## dagpu-output-partition
scale(zeros((2, 4)).partition((2, 2)), 2.0).sync()
# before it is cut with .reshape(shape)
scale(zeros((2, 4)).reshape((8,)).partition((4,)), 2.0).sync()

## dagpu-output-partition
scale.new((2, 4), (2, 2))(2.0).sync()
# Give that many extents
scale.new((8,), (4,))(2.0).sync()

## dagpu-output-partition
scale.new((10,), (4,))(2.0).sync()
# Choose a tile that divides it
scale.new((10,), (5,))(2.0).sync()
# say partial=True
scale.new((10,), (4,), partial=True)(2.0).sync()

## dagpu-use-after-move
op = dup(vector())
zip_ops(op, op.to_host()).sync()
# say .shared() to give it to several
op = dup(vector()).shared()
zip_ops(op, op.to_host()).sync()
# build the op once for each use
t = vector()
zip_ops(dup(t.borrow()), dup(t.borrow()).to_host()).sync()

## dagpu-unused-op
op = zeros((8,))
op = ones((8,))
op.sync()
# leave it out
op = ones((8,))
op.sync()
# op.sync()
op = zeros((8,))
op.sync()
op = ones((8,))
op.sync()

## dagpu-not-ready
t = vector()
print(np.asarray(t))
# .to_host().sync()
t = vector()
print(np.asarray(t.to_host().sync()))

## dagpu-not-ready
op = zeros((8,))
print(np.asarray(op))
# op.to_host().sync()
op = zeros((8,))
print(np.asarray(op.to_host().sync()))

## dagpu-input-rank
saxpy(vector().partition((4,)), 1.0, zeros((2, 4))).sync()
# Reshape it with .reshape(shape)
saxpy(vector().partition((4,)), 1.0, zeros((2, 4)).reshape((8,))).sync()
# declare that rank in CUDA
@kernel(cuda="__global__ void axpy(Tile<float, 1> y, View<const float, 2> x) {}")
def axpy(y: Out[f32], x: In[f32]) -> None: ...
axpy(vector().partition((4,)), zeros((2, 4))).sync()
"""
"""For each mistake: the code of the error, the wrong program, and behind each cure's words the program with it."""
