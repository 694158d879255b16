"""Section `fleet` of a box: what one that has joined a fleet gives and takes (docs/fleet/box.md). And `ControllerConfig`: the file of a
fleet's controller (docs/fleet/controller.md)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError

from configs.schema.base import Section, checked_id, setting
from configs.schema.secret import Secret

#: Whose cameras they are where nobody else is named.
HOUSE = "house"
MOST_NETWORKS = 32


def checked_networks(networks: tuple[str, ...]) -> tuple[str, ...]:
    """Names of networks: ids, each once."""
    if len(networks) > MOST_NETWORKS:
        raise PydanticCustomError("networks", "at most {most} networks", {"most": MOST_NETWORKS})
    if len(set(networks)) < len(networks):
        raise PydanticCustomError("networks", "every network once")
    return tuple(checked_id(name) for name in networks)


class FleetSection(Section):
    """The box as a member of a fleet: several boxes that act as one (docs/fleet/box.md). Who it is there is in the data folder, put
    there by `driftbox fleet join`; without that this section does nothing."""

    enabled: bool = setting(True, text="Take part in the fleet that the box has joined. Off: as if it had joined none.")
    networks: tuple[str, ...] = setting(
        (),
        text="Networks in which this box reaches cameras, by names that the whole fleet uses. A camera of another box comes here only "
        "if it names one of them.",
        default_text="none",
    )
    accept_guests: bool = setting(True, text="Watch cameras of other boxes when the fleet asks for it.")
    consent: bool = setting(
        False,
        text="Let labelled samples of its cameras leave the box, for pooled training and after a camera that another box watches: masks "
        "burnt in, encrypted on the way. A camera's own `consent` overrides it.",
    )

    @field_validator("networks")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return checked_networks(value)


# --- the controller ---------------------------------------------------------------------------------------------------


class LeaseSection(Section):
    """Who writes: one controller at a time, the one that holds the lease."""

    store: Literal["file", "ray", "kubernetes"] = setting(
        "file",
        text="Where the lease is: in the data folder (controllers that share it), in the key-value store of a Ray cluster, or as a "
        "Lease of Kubernetes.",
    )
    name: str = setting(
        "controller", text="Name of the lease. Fleets that share a Ray cluster or a namespace need a name each.", max_length=63
    )
    lasts_s: float = setting(
        15.0,
        unit="seconds",
        ge=2,
        le=300,
        text="How long it is good; so long a stand-by waits for a controller that was killed.",
    )

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return checked_id(value)


class EngineSection(Section):
    """What the fleet's placement is carried to (docs/fleet/engines.md)."""

    use: Literal["auto", "ray", "kubernetes", "local"] = setting(
        "auto",
        text="`ray` or `kubernetes`: capacity, networks, customers' shares and cameras of every box that is a node there stand as "
        "resources on that node. `local`: placement stays in the controller. `auto`: `ray` where `ray.address` is given, else `local`.",
    )


class RaySection(Section):
    """The Ray cluster of the site, for the lease, the engine, or both."""

    address: str = setting("", text="HOST:PORT of its head.", max_length=300, default_text="none")
    token: Secret | None = setting(
        None, text="The cluster's token: `env:NAME` or `file:PATH`.", default_text="as Ray's own environment says"
    )

    @field_validator("address")
    @classmethod
    def _address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value and not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise PydanticCustomError("address", "must be HOST:PORT")
        return value


class KubernetesSection(Section):
    """The Kubernetes cluster, for the lease, the engine, or both."""

    kubeconfig: str = setting("", text="The file; in a pod its service account.", default_text="as `kubectl` finds it")
    context: str = setting("", text="Of that file.", default_text="its current one")
    namespace: str = setting("driftbox", text="Where the lease and our pods are.", max_length=63)
    domain: str = setting("driftbox.io", text="Before the names of our resources, gates and labels.", max_length=253)
    image: str = setting("driftbox:latest", text="Of pods that do work; the same release as the controller.", max_length=300)


class ControllerConfig(Section):
    """Who writes and what placement is carried to, for `driftbox fleet serve --config`. All of it may be left out."""

    lease: LeaseSection = setting(default_factory=LeaseSection, text="Who writes.")
    engine: EngineSection = setting(default_factory=EngineSection, text="What placement is carried to.")
    ray: RaySection = setting(default_factory=RaySection, text="The Ray cluster.")
    kubernetes: KubernetesSection = setting(default_factory=KubernetesSection, text="The Kubernetes cluster.")

    @model_validator(mode="after")
    def _ray_has_an_address(self) -> Self:
        """A cluster that was begun here would be another one for every controller, and none that a box is a node of."""
        asking = [name for name, use in (("lease.store", self.lease.store), ("engine.use", self.engine.use)) if use == "ray"]
        if asking and not self.ray.address:
            raise PydanticCustomError(
                "ray",
                "{asking} asks for a Ray cluster: ray.address must say where its head is (HOST:PORT)",
                {"asking": asking[0]},
            )
        return self

    @property
    def engine_in_force(self) -> Literal["ray", "kubernetes", "local"]:
        """What `auto` means."""
        if self.engine.use != "auto":
            return self.engine.use
        return "ray" if self.ray.address else "local"
