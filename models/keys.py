"""Keys of a box: one of its own to sign what it exports, and a list of those it trusts. Ed25519, by `cryptography`.

    keys/box.key                 private, PEM, mode 0600, made on first use; it never leaves the folder
    keys/box.pub                 its public half, to be given to others
    keys/trusted/<FINGERPRINT>.pub

A fingerprint is the beginning of the SHA-256 of the 32 bytes of a public key, to be compared by people.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import EnvironmentLacking, StorageError, UsageError
from configs.files import TEMP_PREFIX, atomic_write, fsync_path, storage_errors, write_all

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

#: A key file is some hundred bytes; nothing larger is read.
_MOST_BYTES = 4096
#: One thread of this process makes keys at a time; other processes are kept apart by the file's own name.
_MAKING = threading.Lock()


class Signer:
    """A private key in use."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @property
    def public(self) -> bytes:
        """The 32 bytes of the public half."""
        return _raw(self._key.public_key())

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


class KeyRing:
    """The keys of a data folder. Raises StorageError where they cannot be read or kept."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "keys"
        self._private, self.public_file = self._folder / "box.key", self._folder / "box.pub"
        self._trusted = self._folder / "trusted"

    def signer(self) -> Signer:
        """The box's own key, made when there is none. Raises StorageError 'permissions' when others may read it."""
        with _MAKING:
            return self._signer()

    def _signer(self) -> Signer:
        if not self._private.exists():
            self._make()
        with storage_errors(self._private):
            if stat.S_IMODE(self._private.stat().st_mode) & 0o077:
                raise StorageError(
                    f"{self._private} can be read by others", subject=str(self._private), code="permissions",
                    remedy=f"chmod 600 {self._private} - or remove it, and a new key is made",
                )  # fmt: skip
            data = self._private.read_bytes()
        signer = Signer(_private_key(data, self._private))
        if not self.public_file.exists():
            atomic_write(self.public_file, public_pem(signer.public))
        return signer

    def trusts(self, name: str) -> bool:
        """Is the key with this fingerprint one of ours? The box trusts itself."""
        return name in self.trusted() or (self._private.exists() and fingerprint(self.signer().public) == name)

    def trusted(self) -> list[str]:
        """Fingerprints of the keys of others, sorted. A file whose name is not its key's fingerprint does not count."""
        found = []
        for path in sorted(self._trusted.glob("*.pub")):
            with suppress(UsageError):
                if fingerprint(read_public(path)) == path.stem:
                    found.append(path.stem)
        return found

    def trust(self, key_file: Path) -> str:
        """Adds the public key in a file; its fingerprint. Raises UsageError when the file holds none."""
        public = read_public(key_file)
        name = fingerprint(public)
        with storage_errors(self._trusted):
            self._trusted.mkdir(parents=True, exist_ok=True)
        atomic_write(self._trusted / f"{name}.pub", public_pem(public))
        return name

    def distrust(self, name: str) -> None:
        """Raises UsageError when there is no such key."""
        if name not in self.trusted():
            known = ", ".join(self.trusted()) or "none"
            raise UsageError(f"no trusted key '{name}'", subject=name, remedy=f"trusted: {known}")
        with storage_errors(self._trusted):
            (self._trusted / f"{name}.pub").unlink(missing_ok=True)

    def _make(self) -> None:
        """Whole or not at all, never readable by others, and the first of two that do it at once wins."""
        serialization, ed25519, _ = _library()
        key = ed25519.Ed25519PrivateKey.generate()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        with storage_errors(self._private):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd, part = tempfile.mkstemp(prefix=TEMP_PREFIX, dir=self._folder)  # of mode 0600 whatever the umask
            try:
                write_all(fd, pem)
                os.fsync(fd)
                with suppress(FileExistsError):
                    os.link(part, self._private)
            finally:
                os.close(fd)
                os.unlink(part)
            fsync_path(self._folder)


def fingerprint(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()[:32]


def public_pem(public: bytes) -> bytes:
    """A public key's 32 bytes as PEM."""
    serialization, ed25519, _ = _library()
    key = ed25519.Ed25519PublicKey.from_public_bytes(public)
    pem: bytes = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem


def read_public(path: Path) -> bytes:
    """The 32 bytes of a public key in a PEM file. Raises UsageError; a private key is refused, because it is not to be carried
    about."""
    serialization, ed25519, _ = _library()
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", subject=str(path), remedy="check the path") from error
    if b"PRIVATE KEY" in data:
        raise UsageError(
            f"{path} holds a private key", subject=str(path), remedy="ask for the public one (`driftbox models key` prints it)"
        )
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, TypeError, _unsupported()) as error:
        raise UsageError(
            f"{path} holds no public key", subject=str(path), remedy="give the file that `driftbox models key --out` wrote"
        ) from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise UsageError(f"{path} holds a key of another kind than Ed25519", subject=str(path), remedy="see docs/versions.md")
    return _raw(key)


def verify(public: bytes, signature: bytes, data: bytes) -> bool:
    """Did the key's owner sign exactly this?"""
    _, ed25519, exceptions = _library()
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (exceptions.InvalidSignature, ValueError):
        return False
    return True


def _private_key(data: bytes, path: Path) -> Ed25519PrivateKey:
    serialization, ed25519, _ = _library()
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, _unsupported()) as error:
        raise _no_key(path) from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise _no_key(path)
    return key


def _no_key(path: Path) -> StorageError:
    return StorageError(
        f"{path} is no key",
        subject=str(path),
        code="corrupt",
        remedy="remove it, and a new one is made; others must trust it anew",
    )


def _raw(key: Ed25519PublicKey) -> bytes:
    serialization, _, _ = _library()
    raw: bytes = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return raw


def _library() -> tuple[Any, Any, Any]:
    """(serialization, ed25519, exceptions). Raises EnvironmentLacking."""
    try:
        from cryptography import exceptions
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise EnvironmentLacking(
            "signing needs the library cryptography", subject="cryptography", remedy="pip install cryptography"
        ) from error
    return serialization, ed25519, exceptions


def _unsupported() -> type[Exception]:
    found: type[Exception] = _library()[2].UnsupportedAlgorithm
    return found
