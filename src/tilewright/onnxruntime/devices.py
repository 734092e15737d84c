"""Descriptions of devices and memory with ONNX Runtime's names. Any can be described, but programs run on the CPU
only."""

from __future__ import annotations

from enum import IntEnum

from tilewright.onnxruntime.errors import InvalidArgument
from tilewright.support.classes import dataclass


class OrtAllocatorType(IntEnum):
    """Kinds of ONNX Runtime's allocators."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(IntEnum):
    """Kinds of ONNX Runtime's memory."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDeviceMemoryType(IntEnum):
    """Whether the memory of a device is also the host's."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtMemoryInfoDeviceType(IntEnum):
    """Kinds of devices, by ONNX Runtime's numbers."""

    CPU = 0
    GPU = 1
    FPGA = 2
    NPU = 3


class OrtDeviceVendorId(IntEnum):
    """Makers of devices, by their numbers on the PCI bus."""

    NONE = 0
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086


@dataclass(frozen=True, slots=True)
class OrtMemoryInfo:
    """Where memory lies, and which allocator it comes from."""

    name: str = "Cpu"
    allocator_type: OrtAllocatorType = OrtAllocatorType.ORT_DEVICE_ALLOCATOR
    device_id: int = 0
    mem_type: OrtMemType = OrtMemType.DEFAULT
    device_mem_type: OrtDeviceMemoryType = OrtDeviceMemoryType.DEFAULT
    device_vendor_id: int = 0

    @staticmethod
    def create_v2(
        name: str,
        device_type: OrtMemoryInfoDeviceType,
        vendor_id: int,
        device_id: int,
        device_mem_type: OrtDeviceMemoryType,
        alignment: int,
        allocator_type: OrtAllocatorType,
    ) -> OrtMemoryInfo:
        """A description of memory on device number `device_id` by the vendor `vendor_id`, from the arguments of ONNX
        Runtime's `create_v2`; the alignment and the type of device are ignored."""
        return OrtMemoryInfo(name, allocator_type, device_id, OrtMemType.DEFAULT, device_mem_type, vendor_id)


_DEVICES = {
    "cpu": (OrtMemoryInfoDeviceType.CPU, OrtDeviceVendorId.NONE),
    "cuda": (OrtMemoryInfoDeviceType.GPU, OrtDeviceVendorId.NVIDIA),
    "dml": (OrtMemoryInfoDeviceType.GPU, OrtDeviceVendorId.MICROSOFT),
    "gpu": (OrtMemoryInfoDeviceType.GPU, OrtDeviceVendorId.NONE),
    "webgpu": (OrtMemoryInfoDeviceType.GPU, OrtDeviceVendorId.NONE),
    "cann": (OrtMemoryInfoDeviceType.NPU, OrtDeviceVendorId.HUAWEI),
    "npu": (OrtMemoryInfoDeviceType.NPU, OrtDeviceVendorId.NONE),
}
"""Kind and maker by the names that `OrtDevice.make` of ONNX Runtime 1.32 knows."""


class OrtDevice:
    """A device.

    Args:
        kind: ONNX Runtime's number of the kind of device, such as `OrtDevice.cpu()`.
    """

    def __init__(self, kind: int, memory: int = 0, index: int = 0, vendor: int = 0) -> None:
        self._kind, self._memory, self._index, self._vendor = int(kind), memory, index, vendor

    @staticmethod
    def make(name: str, index: int = 0, vendor: int = -1) -> OrtDevice:
        """The device number `index` of the kind `name`, such as "cpu", by `vendor` (negative: the usual one). Raises
        InvalidArgument for an unknown name."""
        if name.lower() not in _DEVICES:
            raise InvalidArgument(f"Unsupported device type: {name}", expected=f"one of {sorted(_DEVICES)}")
        kind, usual = _DEVICES[name.lower()]
        return OrtDevice(kind, 0, index, usual if vendor < 0 else vendor)

    @staticmethod
    def cpu() -> int:
        return 0

    @staticmethod
    def cuda() -> int:
        return 1

    @staticmethod
    def dml() -> int:
        return 3

    @staticmethod
    def cann() -> int:
        return 3

    @staticmethod
    def default_memory() -> int:
        return 0

    def device_type(self) -> int:
        """The number of the device's kind."""
        return self._kind

    def device_id(self) -> int:
        """The number of the device among those of its kind."""
        return self._index

    def device_mem_type(self) -> int:
        """The number of the memory's kind."""
        return self._memory

    def device_vendor_id(self) -> int:
        """The number of the device's maker, 0 for none in particular."""
        return int(self._vendor)

    def _get_c_device(self) -> OrtDevice:
        return self


def check_device(device: str | OrtDevice) -> None:
    """Raise InvalidArgument for a device other than the CPU."""
    name = device.lower() if isinstance(device, str) else device.device_type()
    if name not in ("cpu", 0):
        raise InvalidArgument("programs run on the processor", expected="device 'cpu'", got=repr(name))


__all__ = [
    "OrtAllocatorType",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtDeviceVendorId",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "check_device",
]
