"""The model of examples/decode in PyTorch, on the same weights: eager, in a CUDA graph, compiled in a CUDA graph.

Written as PyTorch's users write a decode step that is to be fast: fused projections, a rotary embedding of halves, a
static cache that is written in place, `scaled_dot_product_attention` with grouped queries and a mask, bfloat16
throughout. Each layer has tensors of its own: if the caches were views of one tensor, the compiled step would copy all
of it for each write.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy as np

from benchmarks.support.gpu import optional
from dagpu import SharedTensor
from examples.decode.model import Model
from examples.decode.parts import EPSILON

Run = Callable[[], object]
"""Does one step, and waits for it."""

DEVICE: Final = "cuda:0"


@final
class TorchLayer:
    """The weights of one layer, and its cache: keys and values are (kv_heads, positions, head)."""

    def __init__(self, torch: Any, weights: Any, cache: tuple[int, int, int]) -> None:
        self.attention_gain, self.qkv, self.output, self.ffn_gain, self.gate_up, self.down = weights
        self.keys, self.values = (torch.zeros(cache, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))


@final
class TorchDecoder:
    """`position` and the next token stay on the GPU."""

    def __init__(self, model: Model[Any]) -> None:
        self._torch = torch = optional("torch")
        if not torch.cuda.is_available():
            raise ImportError("it has no CUDA")
        s, w = model.sizes, model.weights
        self.sizes = s
        self.table, self.last_gain = self._moved(w.table), self._moved(w.last_gain)[0]
        stacked = [self._moved(each) for each in (w.attention_gains, w.qkv, w.output, w.ffn_gains, w.gate_up, w.down)]
        cache = (s.kv_heads, s.positions, s.head)
        self.layers = [TorchLayer(torch, self._joined(*weights), cache) for weights in zip(*stacked, strict=True)]
        self.frequencies = torch.from_numpy(w.frequencies.to_host().sync().copy()).to(DEVICE)
        self.places = torch.arange(s.positions, device=DEVICE)
        self.token = torch.zeros(1, device=DEVICE, dtype=torch.int64)
        self.position = torch.full((1,), s.positions - 1, device=DEVICE, dtype=torch.int64)
        torch.cuda.synchronize()

    def _moved(self, tensor: SharedTensor[Any]) -> Any:
        """Return a copy of a tensor of dagpu, made through the host."""
        torch, array = self._torch, tensor.to_host().sync()
        if array.dtype == np.float32:
            return torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE, torch.bfloat16)
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(DEVICE)

    def _joined(self, attention_gain: Any, qkv: Any, output: Any, ffn_gain: Any, gate_up: Any, down: Any) -> list[Any]:
        """Return the weights of a layer as PyTorch's users have them: all queries, then keys, then values, each head
        with its first coordinates before its second ones; all gates, then all ups."""
        torch, s = self._torch, self.sizes
        halves = torch.cat((torch.arange(0, s.head, 2), torch.arange(1, s.head, 2))).to(DEVICE)
        queries, keys, values = qkv[:, : s.group, halves], qkv[:, s.group, halves], qkv[:, s.group + 1]
        joined = torch.cat([rows.reshape(-1, s.hidden) for rows in (queries, keys, values)]).contiguous()
        gates_and_ups = gate_up.transpose(0, 1).reshape(2 * s.ffn, s.hidden).contiguous()
        return [attention_gain.clone(), joined, output.clone(), ffn_gain.clone(), gates_and_ups, down.clone()]

    # ---- the model

    def _turned(self, x: Any, cosine: Any, sine: Any) -> Any:
        """Return heads (heads, head) rotated by the angles of the position."""
        a, b = x.chunk(2, dim=-1)
        return self._torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)

    def _attended(self, layer: TorchLayer, x: Any, angles: tuple[Any, Any], mask: Any) -> Any:
        s, f = self.sizes, self._torch.nn.functional
        rows = f.linear(f.rms_norm(x, (s.hidden,), layer.attention_gain, EPSILON), layer.qkv).view(-1, s.head)
        queries, keys, values = rows.split((s.heads, s.kv_heads, s.kv_heads))
        layer.keys.index_copy_(1, self.position, self._turned(keys, *angles)[:, None])
        layer.values.index_copy_(1, self.position, values[:, None])
        turned = self._turned(queries, *angles)[None, :, None]
        found = f.scaled_dot_product_attention(
            turned, layer.keys[None], layer.values[None], attn_mask=mask, enable_gqa=True
        )
        return x + f.linear(found.reshape(1, -1), layer.output)

    def _fed_forward(self, layer: TorchLayer, x: Any) -> Any:
        f = self._torch.nn.functional
        y = f.rms_norm(x, (self.sizes.hidden,), layer.ffn_gain, EPSILON)
        gate, up = f.linear(y, layer.gate_up).chunk(2, dim=-1)
        return x + f.linear(f.silu(gate) * up, layer.down)

    def next_token(self) -> Any:
        """Return the token after the present one, (1,), and write to the caches."""
        f, half = self._torch.nn.functional, self._torch.bfloat16
        x = self.table[self.token]
        turns = self.position.float() * self.frequencies
        angles = turns.cos().to(half), turns.sin().to(half)
        mask = (self.places <= self.position)[None, None, None]
        for layer in self.layers:
            x = self._fed_forward(layer, self._attended(layer, x, angles, mask))
        return f.linear(f.rms_norm(x, (self.sizes.hidden,), self.last_gain, EPSILON), self.table).argmax(dim=-1)

    # ---- ways to run it

    def decoded(self, prompt: Sequence[int], count: int) -> list[int]:
        """Return `count` tokens after the prompt, from an empty cache, one eager step at a time."""
        found: list[int] = []
        with self._torch.no_grad():
            for layer in self.layers:
                layer.keys.zero_()
                layer.values.zero_()
            for position in range(len(prompt) + count - 1):
                self.position.fill_(position)
                self.token.fill_(prompt[position] if position < len(prompt) else found[-1])
                token = self.next_token()
                if position >= len(prompt) - 1:
                    found.append(int(token.item()))
            self.position.fill_(self.sizes.positions - 1)
        self._torch.cuda.synchronize()
        return found

    def eager(self) -> Run:
        """Return a step that launches every kernel from Python."""

        def step() -> None:
            with self._torch.no_grad():
                self.token.copy_(self.next_token())

        return self._waited(step)

    def in_graph(self) -> Run:
        """Return the eager step, captured as a graph."""
        return self._captured(self.next_token)

    def compiled_in_graph(self) -> Run:
        """Return a step of torch.compile's kernels, captured as a graph."""
        return self._captured(self._torch.compile(self.next_token, fullgraph=True, dynamic=False))

    def _captured(self, following: Callable[[], Any]) -> Run:
        torch, stream = self._torch, self._torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(3):  # libraries choose and allocate before the capture
                self.token.copy_(following())
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                self.token.copy_(following())
        return self._waited(graph.replay)

    def _waited(self, work: Callable[[], None]) -> Run:
        """Return the work on the current stream, whose change for each step would take longer, with its wait."""
        stream = self._torch.cuda.current_stream()

        def run() -> None:
            work()
            stream.synchronize()

        return run


__all__ = ["Run", "TorchDecoder"]
