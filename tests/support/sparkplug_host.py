"""A Sparkplug host application of somebody else (pysparkplug), as a program: it prints every message of a group as a line of JSON, and
sends the commands that it reads. Run with the Python that DRIFTBOX_SPARKPLUG names: pysparkplug wants an older paho than we use.

    in:  {"device": "gate" | null, "metric": "Learning", "value": false}
    out: {"kind": "DDATA", "device": "gate", "seq": 7, "metrics": {"Learning": ["BOOLEAN", false]}}
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

KINDS = ("NBIRTH", "NDATA", "NDEATH", "DBIRTH", "DDATA", "DDEATH")


def told(message: Any) -> str:
    """A message as it was understood."""
    payload = message.payload
    metrics = getattr(payload, "metrics", None)
    if metrics is None:  # a death has nothing but its number
        found: dict[str, Any] = {"bdSeq": ["INT64", payload.bd_seq_metric.value]} if hasattr(payload, "bd_seq_metric") else {}
    else:
        found = {m.name: [m.datatype.name, None if m.is_null else m.value] for m in metrics}
    return json.dumps(
        {
            "kind": message.topic.message_type.name,
            "device": message.topic.device_id,
            "seq": getattr(payload, "seq", None),
            "retain": message.retain,
            "metrics": found,
        }
    )


def main(port: str, group: str, node: str) -> None:
    spb: Any = importlib.import_module("pysparkplug")  # not of our own Python
    client = spb.Client(client_id="host")
    for kind in KINDS:
        device = "+" if kind.startswith("D") else None
        topic = spb.Topic(message_type=spb.MessageType[kind], group_id=group, edge_node_id=node, device_id=device)
        client.subscribe(topic, spb.QoS.AT_LEAST_ONCE, lambda _, message: print(told(message), flush=True))
    client.connect("127.0.0.1", port=int(port), callback=lambda _: print('{"kind": "ready"}', flush=True))
    for line in sys.stdin:
        wish = json.loads(line)
        metric = spb.Metric(timestamp=1, name=wish["metric"], datatype=spb.DataType.BOOLEAN, value=wish["value"])
        make, kind = (spb.DCmd, "DCMD") if wish["device"] else (spb.NCmd, "NCMD")
        topic = spb.Topic(
            message_type=spb.MessageType[kind], group_id=group, edge_node_id=node, device_id=wish["device"] or None
        )
        payload = make(timestamp=1, metrics=(metric,))
        client.publish(spb.Message(topic=topic, payload=payload, qos=spb.QoS.AT_MOST_ONCE, retain=False))
    client.disconnect()


if __name__ == "__main__":
    main(*sys.argv[1:4])
