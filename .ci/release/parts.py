"""Writes what a release consists of, as CycloneDX.

    parts.py EPOCH OUT FILE... -- OPENSSL URL SHA256 TENSORFLOW...

The list is the same bytes for the same files: no random number and no time of this machine's.
"""

import datetime
import email
import hashlib
import sys
import uuid
import zipfile
from pathlib import Path

from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import Requirement


def main() -> None:
    """Reads the arguments and writes the list."""
    epoch, out, *rest = sys.argv[1:]
    cut = rest.index("--")
    files = [Path(name) for name in rest[:cut]]
    version, place, digest, *tensorflows = rest[cut + 1 :]
    (wheel,) = (path for path in files if path.suffix == ".whl")
    metadata = metadata_of(wheel)
    product = Component(
        name=metadata["Name"],
        version=metadata["Version"],
        type=ComponentType.LIBRARY,
        bom_ref="keras-strom",
        purl=PackageURL("pypi", None, metadata["Name"], metadata["Version"]),
        licenses=[LicenseExpression(metadata["License-Expression"] or metadata["License"])],
        properties=[
            Property(name="keras-strom:operators-for-tensorflow", value=one) for one in tensorflows
        ],
        components=[file_of(path) for path in files],
    )
    linked = Component(
        name="openssl",
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref="openssl",
        description="libcrypto, linked into libstrom.so",
        purl=PackageURL("generic", None, "openssl", version),
        licenses=[LicenseExpression("Apache-2.0")],
        external_references=[
            ExternalReference(
                type=ExternalReferenceType.SOURCE_DISTRIBUTION,
                url=XsUri(place),
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
            )
        ],
    )
    needed = [needed_package(text) for text in metadata.get_all("Requires-Dist", [])]
    needed = [one for one in needed if one is not None]
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, digest_of(wheel)), components=[linked, *needed]
    )
    bom.metadata.timestamp = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc)
    bom.metadata.component = product
    bom.register_dependency(product, [linked, *needed])
    writer = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    Path(out).write_text(writer.output_as_string(indent=2) + "\n")


def metadata_of(wheel: Path) -> "email.message.Message[str, str]":
    """The wheel's METADATA."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(file.read(name))


def file_of(path: Path) -> Component:
    """A file of the release, with its hash."""
    return Component(
        name=path.name,
        type=ComponentType.FILE,
        bom_ref=path.name,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest_of(path))],
    )


def needed_package(text: str) -> Component | None:
    """A package that pip installs with it, by the range of its versions; None for an extra's."""
    requirement = Requirement(text)
    if requirement.marker is not None and "extra" in str(requirement.marker):
        return None
    return Component(
        name=requirement.name,
        type=ComponentType.LIBRARY,
        bom_ref=requirement.name,
        description=f"needed: {requirement.specifier}",
        purl=PackageURL("pypi", None, requirement.name),
    )


def digest_of(path: Path) -> str:
    """A file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
