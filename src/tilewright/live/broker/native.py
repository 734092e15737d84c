"""The broker's native code, assembled and linked."""

from __future__ import annotations

from functools import cache

from tilewright.live.broker.agent_code import define_agent
from tilewright.live.broker.server_code import define_server
from tilewright.live.broker.signals import define_ready, define_sleeping
from tilewright.native.assembler import Module
from tilewright.native.link import Library, compile_text, host_triple
from tilewright.runtime.native import native


def broker_text() -> str:
    """The broker's LLVM text."""
    m = Module(host_triple())
    for part in (define_sleeping, define_ready, define_agent, define_server):
        part(m)
    return m.text()


@cache
def broker_code() -> Library:
    """The broker's code, linked at first use and never unloaded."""
    imports = {"tw_call": native().linked["tw_call"]}
    exports = ["tw_exchange", "tw_serve", "tw_stop"]
    library = Library({"broker": compile_text(broker_text)}, exports, imports)
    library.keep_forever()
    return library
