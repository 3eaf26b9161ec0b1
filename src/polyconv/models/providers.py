"""Providers in onnxruntime's words: who is asked to run nodes, whether it is there, and what runs them instead.

The one idea: who is asked for first decides where a session computes, if it can be had; what is not there is named with
its reason.  It must not know models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from polyconv.errors import ArgumentError, IgnoredWarning, Unsupported, shown, warn
from polyconv.gpu.device import device
from polyconv.gpu.driver import driver, why_absent

__all__ = [
    "CPU", "GPU", "NO_FALLBACK", "PROVIDER", "device_asked_for", "get_available_providers", "provider_options_of",
]  # fmt: skip

PROVIDER = "PolyconvExecutionProvider"
GPU = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"

NO_FALLBACK = "session.disable_cpu_ep_fallback"
"""Entry of onnxruntime's configuration by which no node may run on the CPU that should run elsewhere."""

_HOSTS = {"onnxruntime": CPU, "openvino": "OpenVINOExecutionProvider"}
"""Packages that run the nodes which are no convolutions, and what they are called among the providers."""


def get_available_providers() -> list[str]:
    """Who can run nodes here, as sessions name them: polyconv, what is installed for the other nodes, a GPU.

    Examples
    --------
    >>> import polyconv
    >>> polyconv.get_available_providers()[0]
    'PolyconvExecutionProvider'
    """
    hosts = [name for package, name in _HOSTS.items() if find_spec(package) is not None]
    return [PROVIDER, *hosts, *([GPU] if why_absent() is None else [])]


def provider_options_of(providers: Sequence[Any] | None, options: Sequence[Any] | None) -> dict[str, dict[str, str]]:
    """Providers that a caller names, with their options.

    Parameters
    ----------
    providers : sequence of str or of (str, dict), optional
    options : sequence of dict, optional
        One for each of ``providers``, which are names then.

    Raises
    ------
    ArgumentError
        If they are no such sequences.
    """
    if providers is None:
        return {}
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise ArgumentError(f"providers={providers!r} must be a list, of names or (name, options) pairs")
    if options is not None:
        if not isinstance(options, Sequence) or len(options) != len(providers):
            raise ArgumentError(f"provider_options={options!r} must be a list, a dict for each of {list(providers)}")
        if not all(isinstance(name, str) for name in providers):
            raise ArgumentError(f"providers={list(providers)} must be names where provider_options are given")
        pairs = list(zip(providers, options, strict=True))
    else:
        pairs = [(row, {}) if isinstance(row, str) else row for row in providers]
    found: dict[str, dict[str, str]] = {}
    for pair in pairs:
        match pair:
            case (str(name), dict(given)) if name not in found:
                found[name] = {str(key): str(value) for key, value in given.items()}
            case (str(name), dict()):
                warn(f"the provider {name!r} is named twice; the first one counts", IgnoredWarning)
            case _:
                raise ArgumentError(f"providers={list(providers)} has {pair!r}; give names or (name, options) pairs")
    _warn_of_unknown(found)
    return found


def device_asked_for(found: Mapping[str, Mapping[str, str]]) -> int | None:
    """Number of the GPU on which a session computes; None for the CPU.

    Parameters
    ----------
    found : mapping
        Providers with their options, the first one first.

    Raises
    ------
    Unsupported
        If nothing but a GPU is asked for, and there is none.
    ArgumentError
        If ``device_id`` is no number of a GPU.
    """
    names = [name for name in found if name in (GPU, PROVIDER, CPU)]
    if GPU not in names[:1]:
        return None
    try:
        number = _number(found[GPU])
        device(number)
    except Unsupported as reason:
        if len(names) == 1:
            raise Unsupported(
                f"the provider {GPU!r} is asked for alone, and {reason}; add {CPU!r} to providers to run there"
            ) from None
        warn(f"the provider {GPU!r} has no effect: {reason}; nodes run on the CPU", IgnoredWarning)
        return None
    return number


def _number(options: Mapping[str, str]) -> int:
    """``device_id`` of a provider's options."""
    given = options.get("device_id", "0")
    count = driver().count
    if not given.isdecimal() or int(given) >= count:
        raise ArgumentError(f"device_id={shown(given)} of {GPU} is no GPU here; give 0 to {count - 1}")
    for name in options:
        if name != "device_id":
            warn(f"the option {name!r} of the provider {GPU!r} is onnxruntime's and has no effect", IgnoredWarning)
    return int(given)


def _warn_of_unknown(found: Mapping[str, object]) -> None:
    available = get_available_providers()
    for name in found:
        if name not in available and name not in (CPU, GPU):  # of which the one is always there, the other decided on
            warn(
                f"the provider {name!r} is not available and has no effect: convolutions run on {PROVIDER}, other "
                f"nodes on {', '.join(available[1:]) or 'NumPy'}",
                IgnoredWarning,
            )
