"""Sparkplug B (3.0) messages of an edge node: the box is the node, every camera a device. Pure: bytes and state, no network.

    spBv1.0/<group>/NBIRTH/<node>             everything of the box, `bdSeq` and the rebirth switch
    spBv1.0/<group>/NDATA/<node>              what has changed
    spBv1.0/<group>/NDEATH/<node>             the will, with the `bdSeq` of its birth
    spBv1.0/<group>/DBIRTH/<node>/<camera>    everything of a camera
    spBv1.0/<group>/DDATA/<node>/<camera>     what has changed
    spBv1.0/<group>/DDEATH/<node>/<camera>    the camera gives no pictures, or is gone
    spBv1.0/<group>/NCMD/<node>               in: `Node Control/Rebirth`
    spBv1.0/<group>/DCMD/<node>/<camera>      in: `Learning`, `Watching`

The protocol's message is described here with protobuf's own descriptors: the field numbers are those of the specification, and no
library that brings them fits beside protobuf 7 (docs/decisions/0054-mqtt.md). Only what we use of it is described; what others send
beyond that is skipped by protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from edge.status import BoxStatus, CameraView

NAMESPACE = "spBv1.0"
REBIRTH, BDSEQ = "Node Control/Rebirth", "bdSeq"
LEARNING, WATCHING = "Learning", "Watching"

#: Data types of the specification.
INT64, DOUBLE, BOOLEAN, STRING = 4, 10, 11, 12

Value = bool | int | float | str | None


def _described() -> type[Message]:
    """The class of the protocol's payload."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="driftbox/sparkplug_b.proto", package="driftbox.sparkplug", syntax="proto2")
    payload = file.message_type.add(name="Payload")
    metric = payload.nested_type.add(name="Metric")

    def add(to: Any, name: str, number: int, kind: int, **more: Any) -> None:
        to.field.add(name=name, number=number, type=kind, **{"label": kinds.LABEL_OPTIONAL, **more})

    add(metric, "name", 1, kinds.TYPE_STRING)
    add(metric, "alias", 2, kinds.TYPE_UINT64)
    add(metric, "timestamp", 3, kinds.TYPE_UINT64)
    add(metric, "datatype", 4, kinds.TYPE_UINT32)
    add(metric, "is_null", 7, kinds.TYPE_BOOL)
    metric.oneof_decl.add(name="value")
    add(metric, "int_value", 10, kinds.TYPE_UINT32, oneof_index=0)
    add(metric, "long_value", 11, kinds.TYPE_UINT64, oneof_index=0)
    add(metric, "float_value", 12, kinds.TYPE_FLOAT, oneof_index=0)
    add(metric, "double_value", 13, kinds.TYPE_DOUBLE, oneof_index=0)
    add(metric, "boolean_value", 14, kinds.TYPE_BOOL, oneof_index=0)
    add(metric, "string_value", 15, kinds.TYPE_STRING, oneof_index=0)
    add(payload, "timestamp", 1, kinds.TYPE_UINT64)
    whose = {"label": kinds.LABEL_REPEATED, "type_name": ".driftbox.sparkplug.Payload.Metric"}
    add(payload, "metrics", 2, kinds.TYPE_MESSAGE, **whose)
    add(payload, "seq", 3, kinds.TYPE_UINT64)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("driftbox.sparkplug.Payload"))


Payload = _described()


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A value with its name and the protocol's data type; value None: not known."""

    name: str
    datatype: int
    value: Value


def encoded(metrics: list[Metric], *, at_utc: float, seq: int | None) -> bytes:
    """A payload. seq: None where the protocol wants none (NDEATH)."""
    at_ms = int(at_utc * 1000)
    payload: Any = Payload(timestamp=at_ms)
    if seq is not None:
        payload.seq = seq
    for metric in metrics:
        _fill(payload.metrics.add(name=metric.name, timestamp=at_ms, datatype=metric.datatype), metric)
    return bytes(payload.SerializeToString())


def _fill(made: Any, metric: Metric) -> None:
    if metric.value is None:
        made.is_null = True
    elif metric.datatype == BOOLEAN:
        made.boolean_value = bool(metric.value)
    elif metric.datatype == INT64:
        made.long_value = int(metric.value) % 2**64
    elif metric.datatype == DOUBLE:
        made.double_value = float(metric.value)
    else:
        made.string_value = str(metric.value)


def decoded(body: bytes) -> list[Metric]:
    """The metrics of a payload that somebody sent. Raises ValueError when it is none."""
    payload: Any = Payload()
    try:
        payload.ParseFromString(body)
    except DecodeError as error:
        raise ValueError("not a Sparkplug payload") from error
    return [Metric(name=m.name, datatype=m.datatype, value=_value(m)) for m in payload.metrics]


def _value(metric: Any) -> Value:
    kind = metric.WhichOneof("value")
    found: Value = getattr(metric, kind) if kind is not None and not metric.is_null else None
    return found


# --- what the box and its cameras are -----------------------------------------------------------------------------------


def node_metrics(status: BoxStatus) -> list[Metric]:
    qualities = [camera.quality for camera in status.cameras if camera.quality is not None]
    return [
        Metric(name="Software", datatype=STRING, value=status.software),
        Metric(name="Cameras live", datatype=INT64, value=sum(camera.state == "live" for camera in status.cameras)),
        Metric(name="Mean quality", datatype=DOUBLE, value=round(sum(qualities) / len(qualities), 4) if qualities else None),
        Metric(name="Spare compute pct", datatype=DOUBLE, value=status.spare_pct),
        Metric(name="Window", datatype=INT64, value=status.window.number if status.window else None),
    ]


def device_metrics(camera: CameraView) -> list[Metric]:
    return [
        Metric(name="Name", datatype=STRING, value=camera.name or camera.id),
        Metric(name="State", datatype=STRING, value=camera.state),
        Metric(name="Quality", datatype=DOUBLE, value=None if camera.quality is None else round(camera.quality, 4)),
        Metric(name="Model version", datatype=STRING, value=camera.model),
        Metric(name="Analysed fps", datatype=DOUBLE, value=round(camera.analysed_fps, 1)),
        Metric(name=LEARNING, datatype=BOOLEAN, value=camera.learning),
        Metric(name=WATCHING, datatype=BOOLEAN, value=camera.watching),
        *(Metric(name=f"Present/{name}", datatype=INT64, value=count) for name, count in sorted(camera.present.items())),
        *(
            Metric(name=f"Zones/{zone}/{name}", datatype=INT64, value=count)
            for zone, counts in sorted(camera.zones.items())
            for name, count in sorted(counts.items())
        ),
    ]  # fmt: skip


# --- the node's life ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Tell:
    """One publication. Births, data and a device's death are QoS 0 and not retained, as the specification wants."""

    topic: str
    payload: bytes


@dataclass
class Node:
    """What was told over the present connection. group, name: of the node; bdseq: of the present connection's birth and will, 0-255."""

    group: str
    name: str
    bdseq: int = 0
    _seq: int = 0
    _told: dict[str, dict[str, Metric]] = field(
        default_factory=dict
    )  # '' is the node itself; a device that is dead is not in it
    _born: bool = False

    def topic(self, kind: str, device: str = "") -> str:
        return "/".join([NAMESPACE, self.group, kind, self.name, *([device] if device else [])])

    def death(self, at_utc: float) -> Tell:
        """The will of the connection that is about to be made."""
        return Tell(topic=self.topic("NDEATH"), payload=encoded([self._bdseq()], at_utc=at_utc, seq=None))

    def connecting(self) -> None:
        """A new connection is about to be made: it has a will and a birth of its own."""
        self.bdseq = (self.bdseq + 1) % 256
        self._born = False

    def rebirth(self) -> None:
        """Somebody has missed something: the next `messages` begin with births, under the same `bdSeq`."""
        self._born = False

    def messages(self, status: BoxStatus) -> list[Tell]:
        """What to publish now: births first, then what has changed."""
        at_utc, found = status.now_utc, []
        node = node_metrics(status)
        if not self._born:
            self._born, self._told = True, {}
            birth = [self._bdseq(), Metric(name=REBIRTH, datatype=BOOLEAN, value=False), *node]
            self._seq = 255  # the birth's own is 0
            found.append(self._tell("NBIRTH", "", birth, at_utc))
        else:
            found += self._changes("NDATA", "", node, at_utc)
        self._told[""] = {metric.name: metric for metric in node}
        alive = {camera.id: camera for camera in status.cameras if camera.state == "live"}
        for gone in [device for device in self._told if device and device not in alive]:
            del self._told[gone]
            found.append(self._tell("DDEATH", gone, [], at_utc))
        for device, camera in alive.items():
            metrics = device_metrics(camera)
            known = self._told.get(device)
            if known is None or known.keys() != {metric.name for metric in metrics}:
                found.append(self._tell("DBIRTH", device, metrics, at_utc))  # also when it has other metrics than before
            else:
                found += self._changes("DDATA", device, metrics, at_utc)
            self._told[device] = {metric.name: metric for metric in metrics}
        return found

    def _changes(self, kind: str, device: str, metrics: list[Metric], at_utc: float) -> list[Tell]:
        before = self._told.get(device, {})
        changed = [metric for metric in metrics if before.get(metric.name) != metric]
        return [self._tell(kind, device, changed, at_utc)] if changed else []

    def _tell(self, kind: str, device: str, metrics: list[Metric], at_utc: float) -> Tell:
        self._seq = (self._seq + 1) % 256
        return Tell(topic=self.topic(kind, device), payload=encoded(metrics, at_utc=at_utc, seq=self._seq))

    def _bdseq(self) -> Metric:
        return Metric(name=BDSEQ, datatype=INT64, value=self.bdseq)


def wishes(node: Node, topic: str, body: bytes) -> tuple[bool, list[tuple[str, Mapping[str, Any]]]]:
    """(whether a rebirth is wanted, commands with their arguments) of a message to the node or a device. Raises ValueError."""
    if topic == node.topic("NCMD"):
        return any(m.name == REBIRTH and m.value is True for m in decoded(body)), []
    prefix = node.topic("DCMD") + "/"
    if not topic.startswith(prefix):
        return False, []
    camera, known = topic.removeprefix(prefix), {LEARNING: "camera/learning", WATCHING: "camera/watch"}
    found = [m for m in decoded(body) if m.name in known and isinstance(m.value, bool)]
    return False, [(known[m.name], {"camera": camera, "on": m.value}) for m in found]
