"""The roll call between threads, which stand for processes."""

import concurrent.futures
import socket

import pytest

from bert_jax.errors import UserError
from bert_jax.parallel.roll_call import roll_call


@pytest.fixture
def address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def call_all(address, count, processes, timeout):
    """What each of ``processes`` raises; None where it returns."""
    with concurrent.futures.ThreadPoolExecutor(len(processes)) as pool:
        calls = [pool.submit(roll_call, address, count, i, timeout) for i in processes]
        return [call.exception() for call in calls]


def test_all_return_when_all_are_there_and_the_port_is_free_again(address):
    for _ in range(3):
        assert call_all(address, 4, [3, 1, 0, 2], timeout=20) == [None] * 4


def test_those_who_came_learn_who_did_not(address):
    errors = call_all(address, 4, [0, 2], timeout=1)
    for error in errors:
        assert isinstance(error, UserError)
        assert str(error).startswith("processes 1, 3 did not join within 1 s")


def test_without_process_0_there_is_no_answer(address):
    (error,) = call_all(address, 2, [1], timeout=0.5)
    assert str(error).startswith(f"process 0 at {address} did not answer within 0.5 s")


def test_a_stranger_is_not_counted(address):
    host, port = address.split(":")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        zero = pool.submit(roll_call, address, 2, 0, 20)
        for message in (b"hello\n", b"7\n"):
            while True:
                try:
                    stranger = socket.create_connection((host, int(port)), timeout=5)
                    break
                except ConnectionRefusedError:
                    continue
            with stranger:
                stranger.sendall(message)
        assert not zero.done()
        pool.submit(roll_call, address, 2, 1, 20).result()
        zero.result()


def test_an_address_without_a_port_is_refused():
    with pytest.raises(UserError, match=r"expected HOST:PORT"):
        roll_call("localhost", 2, 1, 1)


def test_a_port_in_use_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} .* cannot be used"):
            roll_call(f"127.0.0.1:{port}", 2, 0, 1)
