"""A process of its own that calls the simulated driver as it is told: one JSON request a line, one answer a line."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
from typing import Any

driver = ctypes.CDLL("libcuda.so.1")


def struct_of(data: bytes) -> ctypes.Structure:
    """Bytes that are passed by value, as the driver takes its handles."""
    fields = [("bytes", ctypes.c_char * len(data))]
    value: ctypes.Structure = type("ByValue", (ctypes.Structure,), {"_fields_": fields})()
    ctypes.memmove(ctypes.byref(value), data, len(data))
    return value


def call(name: str, arguments: list[Any]) -> list[Any]:
    """Code and the bytes of each output, in hex."""
    outputs: list[ctypes.Array[ctypes.c_char]] = []
    values: list[Any] = []
    for argument in arguments:
        if isinstance(argument, dict) and "out" in argument:
            outputs.append(ctypes.create_string_buffer(argument["out"]))
            values.append(outputs[-1])
        elif isinstance(argument, dict) and "value" in argument:
            values.append(struct_of(bytes.fromhex(argument["value"])))
        elif isinstance(argument, dict):
            data = bytes.fromhex(argument["bytes"])
            values.append(ctypes.create_string_buffer(data, len(data)))
        elif isinstance(argument, str):
            values.append(argument.encode())
        else:
            values.append(argument if argument is None else ctypes.c_uint64(argument & (1 << 64) - 1))
    code = getattr(driver, name)(*values)
    return [code, [output.raw.hex() for output in outputs]]


def forked(requests: list[list[Any]]) -> list[Any]:
    """What the calls answer in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, json.dumps([call(*request) for request in requests]).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        text = answers.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else []


def elsewhere(requests: list[list[Any]]) -> list[Any]:
    """What the calls answer in a thread of their own."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.extend(call(*request) for request in requests))
    thread.start()
    thread.join()
    return answers


def repeated(name: str, count: int, arguments: list[Any]) -> list[Any]:
    """The same call many times; all its answers."""
    return [call(name, arguments) for _ in range(count)]


ACTIONS: dict[str, Any] = {
    "call": call,
    "forked": forked,
    "elsewhere": elsewhere,
    "repeated": repeated,
    "open": lambda path: os.open(path, os.O_RDWR),
    "write": lambda address, text: ctypes.memmove(address, text.encode(), len(text)) and None,
    "place": lambda address, data: ctypes.memmove(address, bytes.fromhex(data), len(data) // 2) and None,
    "peek": lambda address: ctypes.c_uint64.from_address(address).value,
    "address": lambda name: ctypes.cast(getattr(driver, name), ctypes.c_void_p).value,
}

if __name__ == "__main__":
    for line in sys.stdin:
        action, *parameters = json.loads(line)
        print(json.dumps(ACTIONS[action](*parameters)), flush=True)
