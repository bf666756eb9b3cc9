"""The training step of examples/digits in PyTorch, on the same weights: eager, and in a CUDA graph.

Written as PyTorch's users write it: two linear layers, `cross_entropy`, autograd, and `SGD` with momentum and weight
decay. A batch is copied from page-locked memory, and the loss of the step is read back.
"""

from collections.abc import Callable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from benchmarks.support.gpu import optional
from examples.digits.training import DECAY, MOMENTUM

TorchStep = Callable[[NDArray[np.float32], NDArray[np.int32], float], float]
"""Trains on a batch of images (n, 64) and labels (n,) with a rate. Returns the mean loss."""


@final
class TorchTrainer:
    """A model of the weights (64, m) and (m, 10) and the biases (1, m) and (1, 10), in this order: w1, b1, w2, b2."""

    def __init__(self, parameters: list[NDArray[np.float32]], rows: int) -> None:
        self._torch = torch = optional("torch")
        if not torch.cuda.is_available():
            raise ImportError("it has no CUDA")
        torch.backends.cuda.matmul.allow_tf32 = False
        self.parameters = [torch.nn.Parameter(torch.from_numpy(array.copy()).to("cuda:0")) for array in parameters]
        self._rate = torch.tensor(0.0, device="cuda:0")
        self._images = torch.zeros((rows, parameters[0].shape[0]), device="cuda:0")
        self._labels = torch.zeros(rows, device="cuda:0", dtype=torch.int64)
        self._images_here = torch.zeros(self._images.shape, pin_memory=True)
        self._labels_here = torch.zeros(rows, dtype=torch.int64, pin_memory=True)
        self._rate_here = torch.zeros((), pin_memory=True)
        self._loss_here = torch.zeros((), pin_memory=True)
        self._stream = torch.cuda.Stream()
        torch.cuda.synchronize()

    def _loss(self) -> Any:
        w1, b1, w2, b2 = self.parameters
        f = self._torch.nn.functional
        return f.cross_entropy(f.relu(self._images @ w1 + b1) @ w2 + b2, self._labels)

    def _copied(self, images: NDArray[np.float32], labels: NDArray[np.int32]) -> None:
        """Enqueue the copy of a batch to the device."""
        self._images_here.numpy()[...] = images
        self._labels_here.numpy()[...] = labels
        self._images.copy_(self._images_here, non_blocking=True)
        self._labels.copy_(self._labels_here, non_blocking=True)

    def eager(self) -> TorchStep:
        """Return a step that launches every kernel from Python."""
        torch = self._torch
        optimizer = torch.optim.SGD(self.parameters, lr=0.1, momentum=MOMENTUM, weight_decay=DECAY)

        def step(images: NDArray[np.float32], labels: NDArray[np.int32], rate: float) -> float:
            with torch.cuda.stream(self._stream):
                self._copied(images, labels)
                optimizer.param_groups[0]["lr"] = rate
                optimizer.zero_grad(set_to_none=True)
                loss = self._loss()
                loss.backward()
                optimizer.step()
                return float(loss.item())

        return step

    def in_graph(self) -> TorchStep:
        """Return the step captured as a graph. The update is written out, because its rate is a tensor that changes."""
        torch = self._torch
        velocities = [torch.zeros_like(parameter) for parameter in self.parameters]

        def body() -> Any:
            loss = self._loss()
            gradients = torch.autograd.grad(loss, self.parameters)
            with torch.no_grad():
                decayed = torch._foreach_add(gradients, self.parameters, alpha=DECAY)  # noqa: SLF001  # as SGD does
                torch._foreach_mul_(velocities, MOMENTUM)
                torch._foreach_add_(velocities, decayed)
                torch._foreach_sub_(self.parameters, torch._foreach_mul(velocities, self._rate))  # noqa: SLF001  # as SGD does
            return loss

        with torch.cuda.stream(self._stream):
            kept = [parameter.detach().clone() for parameter in self.parameters]
            for _ in range(3):  # libraries choose and allocate before the capture
                body()
            self._stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                loss = body()
            with torch.no_grad():
                for parameter, before, velocity in zip(self.parameters, kept, velocities, strict=True):
                    parameter.copy_(before)
                    velocity.zero_()
        self._stream.synchronize()

        def step(images: NDArray[np.float32], labels: NDArray[np.int32], rate: float) -> float:
            with torch.cuda.stream(self._stream):
                self._copied(images, labels)
                self._rate_here.fill_(rate)
                self._rate.copy_(self._rate_here, non_blocking=True)
                graph.replay()
                self._loss_here.copy_(loss.detach(), non_blocking=True)
            self._stream.synchronize()
            return float(self._loss_here)

        return step


__all__ = ["TorchStep", "TorchTrainer"]
