"""The model of examples/decode in PyTorch, on the same weights: eager, in a CUDA graph, compiled in a CUDA graph.

Written as PyTorch's users write a decode step: fused projections, rotary embedding, a static cache that is written in
place, `scaled_dot_product_attention` with grouped queries and a mask, bfloat16 throughout.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from benchmarks.support.gpu import optional
from dagpu import SharedTensor
from examples.decode.model import Model
from examples.decode.parts import EPSILON

Run = Callable[[], object]
"""Does one step, and waits for it."""


@final
class TorchDecoder:
    """`position` and the next token stay on the GPU; `caches` are (kv_heads, positions, head), two for each layer."""

    def __init__(self, model: Model[Any]) -> None:
        self._torch = torch = optional("torch")
        if not torch.cuda.is_available():
            raise ImportError("it has no CUDA")
        s, w = model.sizes, model.weights
        self.sizes = s
        self.table = self._moved(w.table)
        self.attention_gains, self.ffn_gains = self._moved(w.attention_gains), self._moved(w.ffn_gains)
        self.last_gain = self._moved(w.last_gain)[0]
        self.qkv = self._moved(w.qkv).reshape(s.layers, -1, s.hidden)
        self.output, self.down = self._moved(w.output), self._moved(w.down)
        # all gates, then all ups: two contiguous halves, as two matrices side by side are joined
        self.gate_up = self._moved(w.gate_up).transpose(1, 2).reshape(s.layers, 2 * s.ffn, s.hidden).contiguous()
        angles = np.outer(np.arange(s.positions), w.frequencies.to_host().sync())
        self.cosine, self.sine = (self._half(part(angles)) for part in (np.cos, np.sin))
        self.places = torch.arange(s.positions, device="cuda:0")
        shape = (s.layers, 2, s.kv_heads, s.positions, s.head)
        self.caches = torch.randn(shape, device="cuda:0", dtype=torch.bfloat16)
        self.token = torch.zeros(1, device="cuda:0", dtype=torch.int64)
        self.position = torch.full((1,), s.positions - 1, device="cuda:0", dtype=torch.int64)
        self.stream = torch.cuda.Stream()
        torch.cuda.synchronize()

    def _moved(self, tensor: SharedTensor[Any]) -> Any:
        """Return a copy of a tensor of dagpu, made through the host."""
        array = tensor.to_host().sync()
        if array.dtype == np.float32:
            return self._half(array)
        return self._torch.from_numpy(array.view(np.int16)).view(self._torch.bfloat16).to("cuda:0")

    def _half(self, array: "np.ndarray[Any, Any]") -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(array)).to("cuda:0", self._torch.bfloat16)

    # ---- the model

    def _turned(self, x: Any) -> Any:
        """Return pairs (..., head) rotated by the angles of the position."""
        cosine, sine = self.cosine[self.position], self.sine[self.position]
        a, b = x[..., 0::2], x[..., 1::2]
        return self._torch.stack((a * cosine - b * sine, b * cosine + a * sine), dim=-1).flatten(-2)

    def _attended(self, layer: int, x: Any) -> Any:
        s, f = self.sizes, self._torch.nn.functional
        y = f.rms_norm(x, (s.hidden,), self.attention_gains[layer], EPSILON)
        rows = f.linear(y, self.qkv[layer]).view(s.kv_heads, s.group + 2, s.head)
        turned = self._turned(rows[:, : s.group + 1])
        keys, values = self.caches[layer]
        keys.index_copy_(1, self.position, turned[:, s.group :])
        values.index_copy_(1, self.position, rows[:, s.group + 1 :])
        q = turned[:, : s.group].reshape(1, s.heads, 1, s.head)
        mask = (self.places <= self.position).view(1, 1, 1, -1)
        found = f.scaled_dot_product_attention(q, keys[None], values[None], attn_mask=mask, enable_gqa=True)
        return x + f.linear(found.reshape(1, -1), self.output[layer])

    def _fed_forward(self, layer: int, x: Any) -> Any:
        f = self._torch.nn.functional
        y = f.rms_norm(x, (self.sizes.hidden,), self.ffn_gains[layer], EPSILON)
        gate, up = f.linear(y, self.gate_up[layer]).chunk(2, dim=-1)
        return x + f.linear(f.silu(gate) * up, self.down[layer])

    def step(self) -> None:
        """Replace the token by the next one. The position stays."""
        f = self._torch.nn.functional
        x = self.table[self.token]
        for layer in range(self.sizes.layers):
            x = self._fed_forward(layer, self._attended(layer, x))
        logits = f.linear(f.rms_norm(x, (self.sizes.hidden,), self.last_gain, EPSILON), self.table)
        self.token.copy_(logits.argmax(dim=-1))

    # ---- ways to run it

    def decoded(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return `count` tokens after the prompt, from an empty cache, one eager step at a time."""
        found: list[int] = []
        with self._torch.inference_mode():
            self.caches.zero_()
            for position in range(len(prompt) + count - 1):
                self.position.fill_(position)
                self.token.fill_(prompt[position] if position < len(prompt) else found[-1])
                self.step()
                if position >= len(prompt) - 1:
                    found.append(int(self.token.item()))
            self.position.fill_(self.sizes.positions - 1)
        self._torch.cuda.synchronize()
        return found

    def eager(self) -> Run:
        """Return a step that launches every kernel from Python."""
        return self._waited(self.step)

    def in_graph(self) -> Run:
        """Return the eager step, captured as a graph."""
        return self._captured(self.step)

    def compiled_in_graph(self) -> Run:
        """Return a step of torch.compile's kernels, captured as a graph."""
        return self._captured(self._torch.compile(self.step, fullgraph=True, dynamic=False))

    def _captured(self, step: Callable[[], None]) -> Run:
        torch = self._torch
        with torch.inference_mode(), torch.cuda.stream(self.stream):
            for _ in range(3):  # libraries choose and allocate before the capture
                step()
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                step()
        return self._waited(graph.replay)

    def _waited(self, work: Callable[[], None]) -> Run:
        torch = self._torch

        def run() -> None:
            with torch.inference_mode(), torch.cuda.stream(self.stream):
                work()
            self.stream.synchronize()

        return run


__all__ = ["Run", "TorchDecoder"]
