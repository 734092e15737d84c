"""Messages of sessions. They go to Python's logger "tilewright.session", whose handlers and level ONNX Runtime's
functions set."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("tilewright.session")
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""Python's levels of ONNX Runtime's severities: verbose, information, warning, error, fatal."""


class _Callback(logging.Handler):
    """Calls a function with the five arguments that ONNX Runtime passes about a message."""

    def __init__(self, callback: Callable[[int, str, str, str, str], None]) -> None:
        super().__init__()
        self._callback = callback

    def emit(self, record: logging.LogRecord) -> None:
        severity = sum(record.levelno > level for level in _LEVELS[:-1])
        place = f"{record.filename}:{record.lineno} {record.funcName}"
        try:
            self._callback(severity, record.name, getattr(record, "logid", ""), place, record.getMessage())
        except Exception:  # a message that cannot be told is no reason to fail: logging prints the traceback
            self.handleError(record)


def set_default_logger_callback(callback: Callable[[int, str, str, str, str], None] | None, severity: int = 2) -> None:
    """Call a function with each message of a session: its severity, the logger's name, the session's `logid`, the
    place in the code and the text. It takes the place of an earlier one; None for none.

    Args:
        severity: the least severity that there are messages of: 0 (all) to 4.

    Raises RuntimeError for another severity, and for what cannot be called.
    """
    level = _level(severity)
    if callback is not None and not callable(callback):
        raise RuntimeError(f"callback must be callable or None: got {type(callback).__name__}")
    for handler in [h for h in log.handlers if isinstance(h, _Callback)]:
        log.removeHandler(handler)
    if callback is not None:
        log.addHandler(_Callback(callback))
        log.setLevel(level)


def set_default_logger_severity(level: int) -> None:
    """Set the least severity of messages that are logged, 0 (all of them) to 4. RuntimeError for another number."""
    log.setLevel(_level(level))


def _level(severity: int) -> int:
    if not isinstance(severity, int) or severity not in range(len(_LEVELS)):
        raise RuntimeError(f"a severity is 0, 1, 2, 3 or 4: got {severity!r}")
    return _LEVELS[severity]


__all__ = ["log", "set_default_logger_callback", "set_default_logger_severity"]
