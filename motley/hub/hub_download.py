"""Downloads what motley needs of a model on the Hugging Face hub; run by motley with one JSON argument.

Writes {"path", "revision"} to stdout, or {"error", "hint"}. The library's own settings hold: HF_TOKEN, HF_HOME, HF_ENDPOINT,
HF_HUB_OFFLINE, and its cache, where an interrupted download goes on.
"""

import json
import re
import sys

# Debug output of the library belongs to stderr, too.
answer, sys.stdout = sys.stdout, sys.stderr

CONFIGURATION = ["config.json", "generation_config.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json"]
TEXT = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]
WEIGHTS = ["model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"]
FOLDER_INSTEAD = "give the folder or file of a model on this machine, or a name such as llama-2-70b"


class Refused(Exception):
    def __init__(self, message, hint):
        super().__init__(message)
        self.hint = hint


def names_of(repository, revision):
    """The names of all files, or None where the hub cannot be reached."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        return [entry.rfilename for entry in huggingface_hub.model_info(repository, revision=revision).siblings or []]
    except errors.HfHubHTTPError:
        raise
    except Exception:  # no network, or told to be offline: what the cache holds must do
        return None


def patterns_of(asked, names):
    file = asked["file"]
    if not file:
        if names is not None and "config.json" not in names:
            ggufs = sorted(name for name in names if name.endswith(".gguf"))
            if ggufs:
                raise Refused(f"{asked['repository']} has GGUF files and no config.json",
                              "name one of them: " + ", ".join(f"{asked['repository']}:{name}" for name in ggufs[:20]))
            raise Refused(f"{asked['repository']} has no config.json", "name the repository of a language model")
        if asked["weights"] and names is not None and not {"model.safetensors", "model.safetensors.index.json"} & {*names}:
            raise Refused(f"{asked['repository']} has no model.safetensors", "name a repository with weights in that format")
        return CONFIGURATION + (TEXT + WEIGHTS if asked["weights"] else [])
    part = re.fullmatch(r"(.*)-00001-of-(\d{5})\.gguf", file)
    files = [f"{part[1]}-{number:05}-of-{part[2]}.gguf" for number in range(1, int(part[2]) + 1)] if part else [file]
    if names is not None and file not in names:
        ggufs = sorted(name for name in names if name.endswith(".gguf"))
        raise Refused(f"{asked['repository']} has no file {file}",
                      "its GGUF files: " + ", ".join(ggufs[:20]) if ggufs else "it has no GGUF files; leave out the file's name")
    return files


def download(asked):
    import huggingface_hub
    from huggingface_hub import errors
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    repository, revision = asked["repository"], asked["revision"] or None
    try:
        names = names_of(repository, revision)
        folder = huggingface_hub.snapshot_download(
            repository, revision=revision, allow_patterns=patterns_of(asked, names), local_files_only=names is None,
            library_name="motley", library_version=asked["version"])
    except errors.GatedRepoError:
        raise Refused(f"the hub gives {repository} only to accounts that have accepted its terms",
                      "accept them on the model's page, and set HF_TOKEN to a token of that account") from None
    except errors.RepositoryNotFoundError:
        raise Refused(f"the hub has no public model {repository}",
                      "check the name; for a private model set HF_TOKEN. Otherwise " + FOLDER_INSTEAD) from None
    except errors.RevisionNotFoundError:
        raise Refused(f"the hub has no revision {revision} of {repository}", "plan again with the model as it is now") from None
    except errors.HFValidationError as error:
        raise Refused(f"{repository} is not a name of the hub: {error}", FOLDER_INSTEAD) from None
    except (errors.LocalEntryNotFoundError, errors.IncompleteSnapshotError, errors.OfflineModeIsEnabled):
        raise Refused(f"{repository} is not complete in this machine's cache, and the hub cannot be reached",
                      "connect to the network once (without HF_HUB_OFFLINE), or " + FOLDER_INSTEAD) from None
    except errors.HfHubHTTPError as error:
        raise Refused(f"the hub answers: {str(error).splitlines()[0]}", "try again later") from None
    return {"path": f"{folder}/{asked['file']}" if asked["file"] else folder, "revision": folder.rpartition("/")[2]}


def main():
    try:
        result = download(json.loads(sys.argv[1]))
    except Refused as error:
        result = {"error": str(error), "hint": error.hint}
    except ImportError as error:
        result = {"error": f"a Python package is missing: {error}", "hint": ""}
    except Exception as error:  # a full disk, a connection that breaks again and again
        result = {"error": f"the download failed: {str(error) or type(error).__name__}",
                  "hint": "run the same command again: it goes on where it was"}
    answer.write(json.dumps(result))


main()
