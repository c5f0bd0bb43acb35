"""The interface that gloo gets: by the machine's own routes and addresses, with real sockets."""

import ipaddress
import os

import psutil
import pytest

from tape_ds.distributed import comparison


@pytest.fixture
def outside(monkeypatch):
    """An address of this machine that others could reach, and its interface."""
    monkeypatch.setenv(comparison.GLOO, "")  # so that what a test sets is undone
    monkeypatch.delenv(comparison.GLOO)
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family.name == "AF_INET" and not ipaddress.ip_address(each.address).is_loopback:
                return each.address, name
    return pytest.skip("this machine has a loopback interface alone")


def test_the_way_to_another_machine_decides(outside):
    """Behind a name that is a loopback address here, as a Debian's own is, comes the first that is not."""
    address, name = outside
    assert comparison.own_address(address) == address
    comparison.use_interface_towards(["127.0.1.1", "localhost", "", "no.such.name.invalid", address])
    assert os.environ[comparison.GLOO] == name


def test_what_the_user_chose_stays(outside, monkeypatch):
    monkeypatch.setenv(comparison.GLOO, "mine")
    comparison.use_interface_towards([outside[0]])
    assert os.environ[comparison.GLOO] == "mine"


def test_machines_that_are_one_leave_it_to_gloo(outside):
    """Two launchers on loopback addresses."""
    comparison.use_interface_towards(["127.0.0.1", "127.0.0.2", ""])
    assert comparison.GLOO not in os.environ
