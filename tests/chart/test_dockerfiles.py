"""The Dockerfiles: what they start from, what they copy, who their programs run as."""

from pathlib import Path

import pytest

from e2e.images.dockerfile import Copy, DockerfileError, Run, Stage, parse

ROOT = Path(__file__).resolve().parents[2]
FILES = ("Dockerfile.webhook", "Dockerfile.libsync")


@pytest.fixture(params=FILES)
def stages(request: pytest.FixtureRequest) -> list[Stage]:
    return parse(ROOT / request.param)


def test_base_is_pinned_to_a_full_version(stages: list[Stage]) -> None:
    names = {stage.name for stage in stages}
    bases = {stage.base for stage in stages} - names - {"scratch"}
    assert bases == {"python:3.11.13-slim-bookworm"}


def test_every_copied_file_is_in_the_checkout(stages: list[Stage]) -> None:
    for stage in stages:
        for step in stage.steps:
            if isinstance(step, Copy) and not step.stage:
                assert all((ROOT / source).exists() for source in step.sources), step


def test_every_copied_file_passes_the_ignore_list(stages: list[Stage]) -> None:
    """What .dockerignore hides isn't in the context, and COPY fails."""
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for stage in stages:
        for step in stage.steps:
            if isinstance(step, Copy) and not step.stage:
                assert set(step.sources) <= kept, step


def test_every_named_stage_comes_earlier(stages: list[Stage]) -> None:
    known: set[str] = set()
    for stage in stages:
        assert all(step.stage in known for step in stage.steps if isinstance(step, Copy) and step.stage), stage.name
        known.add(stage.name)


def test_last_stage_runs_no_installer(stages: list[Stage]) -> None:
    commands = [step.command for step in stages[-1].steps if isinstance(step, Run)]
    assert not any("pip" in command or "apt-get" in command for command in commands)


def test_webhook_image_starts_as_nobody_in_particular() -> None:
    last = parse(ROOT / "Dockerfile.webhook")[-1]
    assert last.user == "65532:65532"
    assert last.entrypoint == ["python3", "-m", "webhook"]


def test_node_image_brings_both_architectures() -> None:
    last = parse(ROOT / "Dockerfile.libsync")[-1]
    targets = {step.target for step in last.steps if isinstance(step, Copy)}
    folder = last.variables(len(last.steps))["KRI_LIBSYNC_LIBRARY"]
    assert {f"{folder}/x86_64/libvgpu.so", f"{folder}/aarch64/libvgpu.so"} <= targets
    assert last.entrypoint == ["python3", "-m", "libsync"]


def test_an_instruction_that_is_not_understood_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("FROM scratch\nADD https://example.invalid/x /x\n")
    with pytest.raises(DockerfileError, match="ADD isn't understood"):
        parse(file)
