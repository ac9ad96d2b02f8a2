"""Bill: the bill of materials of a release, made of what was found in the environment where its wheel is.  Pure.

What is found has this machine in it: the path of the wheel, and the tools that each new environment gets.  The bill
has only the package and the packages that it brings, so it is the same on each machine with the same versions.
"""

from __future__ import annotations

from typing import Any

from tools.release.rules import Refused

__all__ = ["of_release"]

TOOLS = {"pip", "setuptools", "wheel"}  # of a new environment, not of the package


def of_release(found: dict[str, Any], wheel: str) -> dict[str, Any]:
    """Return the bill of a release, a CycloneDX document.  wheel: the name of its file.  Raises Refused."""
    components = [each for each in found["components"] if each["name"] not in TOOLS]
    ours = [each for each in components if each["name"] == "kiqcluster"]
    if len(ours) != 1:
        raise Refused(f"the bill of materials has kiqcluster {len(ours)} times: it has to be there once")
    kept = {each["bom-ref"] for each in components}
    subject = ours[0] | {"purl": f"pkg:pypi/kiqcluster@{ours[0]['version']}"}
    subject["externalReferences"] = [
        each | {"url": wheel} if each["type"] == "distribution" else each for each in subject["externalReferences"]
    ]
    return found | {
        "metadata": found["metadata"] | {"component": subject},
        "components": [each for each in components if each not in ours],
        "dependencies": [_among(kept, each) for each in found["dependencies"] if each["ref"] in kept],
    }


def _among(kept: set[str], dependency: dict[str, Any]) -> dict[str, Any]:
    """Return what a component depends on, without components that are not kept."""
    on = [each for each in dependency.get("dependsOn", ()) if each in kept]
    return {"ref": dependency["ref"], **({"dependsOn": on} if on else {})}
