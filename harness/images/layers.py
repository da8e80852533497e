"""Building an image without a tag from a folder, by the engine's classic builder: no BuildKit is asked for."""

from pathlib import Path

from aftershock.harness.images.workshop import StepError, Workshop


def build_untagged(
    bench: Workshop, folder: Path, arguments: dict[str, str] | None = None, dockerfile: str = "Dockerfile"
) -> str:
    """The id of an image built from ``folder``; removed at the end of the build unless tagged or built upon.

    Raises:
        StepError: a line of the Dockerfile failed; the engine's words are in the log as well.
    """
    image_id = None
    for event in bench.client.api.build(
        path=str(folder),
        dockerfile=dockerfile,
        buildargs=arguments or {},
        rm=True,
        forcerm=True,
        decode=True,
    ):
        bench.check_cancelled()
        bench.note(event.get("stream", ""))
        if "error" in event:
            raise StepError(event["error"].strip())
        image_id = event.get("aux", {}).get("ID", image_id)
    if image_id is None:
        raise StepError("the engine named no image at the end of the build")
    bench.keep_or_remove(image_id)
    return str(image_id)
