"""What settings say of generated code: for which instructions it is made, in which processes, and where it is kept.

Kernels read no setting, so whoever has them made asks here.  It must not know what they compute.
"""

from __future__ import annotations

from polyconv import cache, elsewhere
from polyconv.settings import resolve as setting
from polyconv.target import Target, target

__all__ = ["keep_where_settings_say", "target_in_force"]


def target_in_force() -> Target:
    """What code is made for now; its kernels are kept where settings say."""
    keep_where_settings_say()
    return target(setting("target"))


def keep_where_settings_say() -> None:
    """Let kernels be compiled and kept where the settings say that were in force at the first call."""
    if not cache.has_folder():
        cache.use_folder(setting("cache_dir"))
        if not setting("helpers"):
            elsewhere.run_here()
