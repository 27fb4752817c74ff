"""Whole passes of Block and Full through given sublayer outputs: against float64, and as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from repro.bench.gpu_accuracy import LIMITS, Results, error
from repro.bench.gpu_data import Draw
from repro.bench.roofline import timing
from repro.bench.supervised import Row
from repro.depth.attnres import AttnRes

#: Sublayers per block; every sublayer output is a source of Full.
BLOCK_SIZES = {"Block (S=4)": 4, "Full": 1}


def build(
    scheme: str, sublayers: int, width: int, backend: str, device: str, execution: str = "auto"
) -> AttnRes:
    """With drawn queries and gains, the same for every backend; zero queries would only average."""
    options = {"block_size": BLOCK_SIZES[scheme], "execution": execution, "backend": backend}
    mixer = AttnRes(sublayers, width, **options)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in mixer.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "gain" in name else noise * (2 / width**0.5))
    return mixer.to(device)


def walk(mixer: AttnRes, embedding: Tensor, sublayer: Callable[[int, Tensor], Tensor]) -> list[Tensor]:
    """All reads; sublayer l gives what it writes."""
    state = mixer.begin(embedding)
    reads = []
    for l in range(mixer.num_sublayers):
        mixed, state = mixer.read(state, l)
        reads.append(mixed)
        state = mixer.write(state, l, sublayer(l, mixed))
    return [*reads, mixer.finish(state)]


def there_and_back(
    mixer: AttnRes, streams: list[Tensor], upstream: list[Tensor]
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Reads of embedding and sublayer outputs; gradients of these and of the parameters, from the reads'."""
    values = [stream.detach().requires_grad_() for stream in streams]
    reads = walk(mixer, values[0], lambda l, _: values[l + 1])
    return reads, torch.autograd.grad(reads, [*values, *mixer.parameters()], upstream)


def results(mixer: AttnRes, streams: list[Tensor], upstream: list[Tensor]) -> Results:
    reads, grads = there_and_back(mixer, streams, upstream)
    names = [f"gradient of {name}" for name, _ in mixer.named_parameters()]
    found = {"reads": torch.stack(reads), "source gradients": torch.stack(grads[: len(streams)])}
    return found | dict(zip(names, grads[len(streams) :], strict=True))


def accuracy(
    scheme: str, device: str, dtype: str, sublayers: int, lead: tuple[int, ...], width: int
) -> Iterator[Row]:
    """Errors against Fig. 2 as written in float64.

    A pass rounds every partial sum, which its definition does not: where that counts, the limit is twice the
    error of backend eager, which rounds in the same places and shares no arithmetic.
    """
    draw = Draw(device, dtype, lead, width)
    streams, upstream = draw.streams(sublayers + 1), draw.streams(sublayers + 1)
    shape = (scheme, sublayers, width)
    exact = results(
        build(*shape, "reference", device, "per_read").double(),
        [stream.double() for stream in streams],
        [grad.double() for grad in upstream],
    )
    other = results(build(*shape, "eager", device), streams, upstream)
    for result, value in results(build(*shape, "triton", device), streams, upstream).items():
        yield {
            "operation": f"pass of {scheme}",
            "backend": "triton",
            "direction": "backward" if "gradient" in result else "forward",
            "dtype": dtype,
            "width": width,
            "sources": sublayers + 1,
            "quantity": f"error of {result}",
            "value": error(value, exact[result]),
            "limit": max(LIMITS[dtype], 2 * error(other[result], exact[result])),
        }


def graph(
    scheme: str, device: str, dtype: str, sublayers: int, tokens: int, width: int, repeats: int
) -> Iterator[Row]:
    """A forward pass captured once and replayed on other numbers: equal, and timed beside single launches."""
    draw = Draw(device, dtype, (tokens,), width)
    mixer, given, others = build(scheme, sublayers, width, "triton", device), draw.stream(), draw.stream()

    def forward(embedding: Tensor) -> Tensor:
        return walk(mixer, embedding, lambda _, mixed: F.silu(mixed))[-1]

    who = {
        "operation": f"pass of {scheme}, graph",
        "backend": "triton",
        "direction": "forward",
        "dtype": dtype,
        "tokens": tokens,
        "width": width,
        "sources": sublayers + 1,
    }
    with torch.no_grad():
        wanted = forward(others)
        replay, output = _captured(forward, given)
        given.copy_(others)
        replay()
        yield who | {"quantity": "error of replay", "value": error(output(), wanted.double()), "limit": 0.0}
        for name, work in (("graph", replay), ("launches", lambda: forward(given))):
            yield who | timing(work, draw.device, repeats).row() | {"operation": f"pass of {scheme}, {name}"}


def _captured(
    forward: Callable[[Tensor], Tensor], given: Tensor
) -> tuple[Callable[[], None], Callable[[], Tensor]]:
    """What replays `forward` of the tensor as it then is, and where its result is found."""
    if given.device.type != "cuda":
        return lambda: None, lambda: forward(given)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # compilation and the libraries' workspaces may not be captured
            forward(given)
    torch.cuda.current_stream().wait_stream(stream)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        output = forward(given)
    return recorded.replay, lambda: output
