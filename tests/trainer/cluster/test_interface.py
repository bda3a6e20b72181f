"""Collectives use the interface of the node's address, unless the operator named another."""

from __future__ import annotations

import os

import pytest

from mint2m_trainer.cluster.interface import VARIABLES, bind_collectives, interface_of


def test_loopback_carries_its_address() -> None:
    """`lo` is Linux's own name, and 127.0.0.1 is on it wherever it is up."""
    assert [interface_of(address) for address in ("127.0.0.1", "127.0.0.5")] == ["lo", "lo"]


def test_an_address_that_is_not_this_nodes_is_refused_with_its_name() -> None:
    with pytest.raises(OSError, match=r"192\.0\.2\.1"):
        interface_of("192.0.2.1")


def test_what_the_operator_named_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "fabric0")
    bind_collectives("127.0.0.1")
    assert [os.environ[name] for name in VARIABLES] == ["fabric0", "lo"]
