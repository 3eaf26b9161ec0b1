"""Options of sessions and runs, in onnxruntime's words: what is honoured, and a warning for what is not.

The attributes are onnxruntime's, so that its code sets ours and its objects are taken in their place.  A row of
``_IGNORED`` says what has no effect here and why; whoever asks for it is told, once a line of code.  It must not
know models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, field, fields
from enum import IntEnum
from typing import Any

from polyconv.dataclass import dataclass
from polyconv.errors import ArgumentError, IgnoredWarning, warn
from polyconv.models.providers import NO_FALLBACK, provider_options_of

__all__ = [
    "ExecutionMode", "ExecutionOrder", "GraphOptimizationLevel", "RunOptions", "SessionOptions",
    "leaves_results_to_stream", "warn_of_ignored",
]  # fmt: skip

class GraphOptimizationLevel(IntEnum):
    """How far a graph is rewritten; polyconv knows all, and what leaves every bit as it is (ORT_DISABLE_ALL)."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Whether nodes run one after another or side by side; polyconv runs them one after another."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """In which order nodes run; polyconv takes the file's."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass(slots=True)
class SessionOptions:
    """Options of a session, with onnxruntime's names.

    Honoured are ``intra_op_num_threads``, ``enable_profiling`` with ``profile_file_prefix``, and free dimensions;
    results are always deterministic, and memory is neither pooled nor planned ahead.  For what else is set and has
    no effect a session warns by name.

    Parameters
    ----------
    intra_op_num_threads : int
        Most threads of one node; 0 leaves it to the settings.
    enable_profiling : bool
        Record what runs, for ``InferenceSession.end_profiling``.
    profile_file_prefix : str
        Path of the file that it writes, to which the time and .json are added.
    enable_cpu_mem_arena, enable_mem_pattern, enable_mem_reuse : bool
        There is no arena here; accepted.
    graph_optimization_level : GraphOptimizationLevel
        ORT_DISABLE_ALL leaves out rewrites that may change a bit, as a session's ``rewrites="exact"``; of the others
        all do the same, of which a session warns.
    execution_mode, execution_order, inter_op_num_threads, optimized_model_filepath
        Without effect; a session warns where they are not the default.
    log_severity_level, log_verbosity_level, logid
        Accepted; polyconv logs to the logger named polyconv.
    use_deterministic_compute, use_per_session_threads : bool
        Accepted; results are deterministic in either case.

    Examples
    --------
    >>> import polyconv
    >>> options = polyconv.SessionOptions(intra_op_num_threads=1)
    >>> options.add_free_dimension_override_by_name("height", 480)

    ``polyconv.InferenceSession(model, options)`` then runs nodes on one thread, and ``height`` is 480.
    """

    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: Any = ExecutionMode.ORT_SEQUENTIAL
    execution_order: Any = ExecutionOrder.DEFAULT
    graph_optimization_level: Any = GraphOptimizationLevel.ORT_ENABLE_ALL
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "polyconv_profile"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    _entries: dict[str, str] = field(default_factory=dict, init=False)
    _dimensions: dict[str, int] = field(default_factory=dict, init=False)
    _providers: dict[str, dict[str, str]] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, given: Any) -> SessionOptions:
        """A copy of options that someone may change later: ours, or any object that has some of the attributes."""
        made = cls()
        if given is None:
            return made
        if isinstance(given, SessionOptions):
            return given.copy()
        known = [row for row in fields(cls) if row.init and hasattr(given, row.name)]
        if not known:
            raise ArgumentError(
                f"sess_options is of type {type(given).__name__}; give a SessionOptions of polyconv or onnxruntime"
            )
        for row in known:
            setattr(made, row.name, _own(row, getattr(given, row.name)))
        return made

    def copy(self) -> SessionOptions:
        """The same options, which later changes do not reach."""
        own = {row.name: _own(row, getattr(self, row.name)) for row in fields(self) if row.init}
        made = SessionOptions(**own)
        made._entries, made._dimensions = dict(self._entries), dict(self._dimensions)
        made._providers = {name: dict(options) for name, options in self._providers.items()}
        return made

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry of onnxruntime's configuration.

        ``session.disable_cpu_ep_fallback`` set to ``1`` refuses nodes that have no kernel on the GPU; no other has an
        effect here.
        """
        self._entries[str(key)] = str(value)

    def get_session_config_entry(self, key: str) -> str:
        """Value of a kept entry."""
        return _entry(self._entries, key, "SessionOptions")

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fix a dimension that the model leaves open under a name."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ArgumentError(f"the dimension {name!r} is overridden by {value!r}; give a whole number, at least 0")
        self._dimensions[str(name)] = value

    def add_provider(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        """Ask for a provider, as the session's ``providers`` does."""
        self._providers[name] = {str(k): str(v) for k, v in (options or {}).items()}

    def has_providers(self) -> bool:
        """Whether ``add_provider`` was called."""
        return bool(self._providers)

    @property
    def providers(self) -> dict[str, dict[str, str]]:
        """Providers that were added, with their options."""
        return provider_options_of(list(self._providers.items()), None)

    @property
    def has_fallback(self) -> bool:
        """Whether nodes may run on the CPU that have no kernel where they should run."""
        return self._entries.get(NO_FALLBACK, "0") != "1"

    @property
    def free_dimensions(self) -> Mapping[str, int]:
        """Dimensions that were overridden."""
        return self._dimensions


@dataclass(slots=True)
class RunOptions:
    """Options of one run, with onnxruntime's names.

    Parameters
    ----------
    terminate : bool
        Set while a run is under way, it ends before its next step with an ``Error``.
    log_severity_level, log_verbosity_level, logid, only_execute_path_to_fetches
        Accepted; only what the wanted outputs need is ever computed.

    Examples
    --------
    >>> import polyconv
    >>> options = polyconv.RunOptions()
    >>> options.terminate = True

    Another thread that sets this ends ``session.run(names, feeds, options)`` before its next step.
    """

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False
    _entries: dict[str, str] = field(default_factory=dict, init=False)

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry of onnxruntime's configuration.

        ``disable_synchronize_execution_providers`` set to ``1`` lets ``run_with_iobinding`` on a GPU return before its
        results are there; no other has an effect here.
        """
        self._entries[str(key)] = str(value)

    def get_run_config_entry(self, key: str) -> str:
        """Value of a kept entry."""
        return _entry(self._entries, key, "RunOptions")


def leaves_results_to_stream(options: Any) -> bool:
    """Whether a run on a GPU may return before its results are there; polyconv's options or onnxruntime's."""
    try:
        return bool(options.get_run_config_entry("disable_synchronize_execution_providers") == "1")
    except (ArgumentError, AttributeError, RuntimeError):  # of theirs, too, that have no such entry
        return False


def _entry(entries: Mapping[str, str], key: str, owner: str) -> str:
    if key not in entries:
        raise ArgumentError(f"{owner} has no entry {key!r}; it has {', '.join(entries) or 'none'}")
    return entries[key]


def _own(row: Field[Any], value: Any) -> Any:
    """The value of an option; one of onnxruntime's enumerations becomes ours."""
    if not isinstance(row.default, IntEnum):
        return value
    kind = type(row.default)
    try:
        return kind(int(value))
    except (TypeError, ValueError):
        names = ", ".join(kind.__members__)
        raise ArgumentError(f"sess_options.{row.name}={value!r} is none of {names}; give one of them") from None


_IGNORED = {
    "optimized_model_filepath": "no optimised model is written",
    "graph_optimization_level": "graphs are rewritten as far as can be, or with ORT_DISABLE_ALL exactly",
    "execution_mode": "nodes run one after another, each on all threads",
    "execution_order": "nodes run in the order of the file",
    "inter_op_num_threads": "nodes run one after another, each on all threads",
}
"""Options without effect, and why."""


def warn_of_ignored(options: SessionOptions) -> None:
    """Name what was asked for and cannot be honoured."""
    for row in fields(SessionOptions):
        if row.name in _IGNORED:
            value = getattr(options, row.name)
            if value != row.default and value is not GraphOptimizationLevel.ORT_DISABLE_ALL:
                shown = value.name if isinstance(value, IntEnum) else repr(value)
                warn(f"sess_options.{row.name}={shown} has no effect: {_IGNORED[row.name]}", IgnoredWarning)
    for key, entry in options._entries.items():
        if key != NO_FALLBACK:
            warn(f"the session option {key!r}={entry!r} is onnxruntime's and has no effect", IgnoredWarning)
