"""The project's own papers: workflows, hooks, templates and licences are valid and agree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata, packages_distributions
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
USED = re.compile(r"uses: (\S+)@(\S+)(.*)")


def call(*command):
    tool = Path(sys.executable).parent / command[0]
    return subprocess.run(
        [tool, *map(str, command[1:])], cwd=ROOT, capture_output=True, text=True, check=False
    )


def required(*extras):
    """Return the packages that the library or these extras need."""
    every = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(one for extra in extras or every for one in every[extra])]
    names = {re.match(r"[\w.-]+", one)[0] for one in wanted}
    return names - {"driftrate"}


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("vendor.github-workflows", ".github/workflows/*.yml"),
        ("custom.github-workflows-require-timeout", ".github/workflows/*.yml"),
        ("vendor.dependabot", ".github/dependabot.yml"),
        ("vendor.github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("vendor.github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("vendor.citation-file-format", "CITATION.cff"),
    ],
)
def test_a_form_is_filled_in_as_its_reader_wants(schema, pattern):
    files = sorted(ROOT.glob(pattern))
    assert files
    done = call("check-jsonschema", "--builtin-schema", schema, *files)
    assert done.returncode == 0, done.stdout


def test_workflows_have_no_known_weakness():
    done = call("zizmor", "--offline", "--no-progress", "--persona", "pedantic", ".github")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_and_rights_are_given_job_by_job(path):
    text = path.read_text()
    for name, commit, tag in USED.findall(text):
        assert re.fullmatch(r"[0-9a-f]{40}", commit), name
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", tag), name
    assert "\npermissions: {}\n" in text
    assert "secrets." not in text


def test_one_action_has_one_version():
    used = {
        (name, commit) for path in WORKFLOWS for name, commit, _ in USED.findall(path.read_text())
    }
    assert len({name for name, _ in used}) == len(used)


def test_the_workflow_does_what_ci_does():
    script = (ROOT / ".ci" / "run").read_text()
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    wanted = set(re.findall(r"^make \w+", script, re.MULTILINE))
    assert wanted <= set(re.findall(r"run: (make \w+)", text))
    variables = re.findall(r"^export (\w+)=(\w+)", script, re.MULTILINE)
    assert variables
    assert all(f"{name}: {value}\n" in text for name, value in variables)
    commands = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for path in WORKFLOWS:
        assert set(re.findall(r"run: make (\w+)", path.read_text())) <= {*commands}


def test_every_python_of_the_classifiers_is_tested():
    named = re.findall(r":: (3\.\d+)\n", "\n".join([*PROJECT["classifiers"], ""]))
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r"\d\.\d+", re.search(r"python: \[(.*)\]", text)[1]) == named


def test_the_required_checks_are_those_of_a_pull_request():
    """GitHub waits for ever for a check that no job is named like."""
    names = set()
    for path in WORKFLOWS:
        told = yaml.safe_load(path.read_text())
        if "pull_request" not in told[True]:  # YAML reads `on` so
            continue
        for job in told["jobs"].values():
            if "if" not in job:
                pythons = job.get("strategy", {}).get("matrix", {}).get("python", [""])
                names |= {job["name"].replace("${{ matrix.python }}", one) for one in pythons}
    wanted = re.search(r"required checks passed:(.*?);", (ROOT / "RELEASING.md").read_text(), re.S)
    assert set(re.findall(r"`([^`]+)`", wanted[1])) == names


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_torch_comes_without_cuda(path):
    """The pinned torch of the default registry would bring gigabytes of it."""
    index = yaml.safe_load(path.read_text()).get("env", {}).get("PIP_EXTRA_INDEX_URL")
    assert index == "https://download.pytorch.org/whl/cpu"


def test_hooks_are_local_and_run_what_is_there():
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"- repo: (\S+)", text) == ["local"]
    done = call("pre-commit", "validate-config", ".pre-commit-config.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    for tool in re.findall(r"entry: \.venv/bin/(\S+)", text):
        assert (Path(sys.executable).parent / tool).exists()
    for path in re.findall(r"(tests/\S+\.py)", text):
        assert (ROOT / path).exists()


def test_the_hook_checks_the_types_of_all_that_lint_does():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    (pattern,) = (one["files"] for one in hooks if one["id"] == "mypy")
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    for folder in tools["mypy"]["files"]:
        assert re.match(pattern, f"{folder}/some/file.py")


def listed():
    """Return the licence of each package that THIRD_PARTY.md names, and its extras."""
    text = (ROOT / "THIRD_PARTY.md").read_text().partition("\n## Data")[0]
    rows = re.findall(r"^\| ([\w-]+) \| ([\w, ]+) \| ([^|]+) \|", text, re.MULTILINE)
    found = {name: (set(extras.split(", ")), licence) for name, extras, licence in rows}
    found.pop("package")
    return found


def test_every_dependency_is_listed_with_its_extras():
    every = PROJECT["optional-dependencies"]
    wanted = {"core": PROJECT["dependencies"], **every}
    found = {}
    for extra, ones in wanted.items():
        for one in ones:
            found.setdefault(re.match(r"[\w.-]+", one)[0], set()).add(extra)
    found.pop("driftrate")
    assert {name: extras for name, (extras, _) in listed().items()} == found


# In what words a package's metadata may say that it has a licence.
WORDS = {"MIT": "MIT", "Apache-2.0": "Apache", "MPL-2.0": "MPL", "PSF": "Python Software"}


@pytest.mark.parametrize("name", sorted(required()))
def test_a_licence_is_what_the_package_says(name):
    try:
        said = metadata(name)
    except PackageNotFoundError:
        assert name in required("loops", "kernels"), "make setup brings all others"
        pytest.skip(f"{name} comes with make check")
    words = [said.get("License-Expression"), *(said.get_all("Classifier") or [])]
    words = [*(one for one in words if one), (said.get("License") or "")[:200]]
    _, licence = listed()[name]
    word = next((WORDS[key] for key in WORDS if licence.startswith(key)), licence[:3])
    assert any(word in one for one in words), words


def test_what_an_extra_brings_is_used():
    """A package that no line of the library names would be installed for nothing."""
    text = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    modules = {}
    for module, owners in packages_distributions().items():
        for owner in owners:
            modules.setdefault(owner.lower().replace("_", "-"), []).append(module)
    extras = set(PROJECT["optional-dependencies"]) - {"dev", "docs", "loops", "kernels"}
    unused = [
        name
        for name in required(*extras)
        if not any(re.search(rf"\b{module}\b", text) for module in modules[name])
    ]
    assert unused == []


def test_addresses_are_of_one_repository():
    names = [*(ROOT / ".github").rglob("*.yml"), *ROOT.glob("*.md"), ROOT / "pyproject.toml"]
    found = {
        one
        for path in names
        for one in re.findall(r"github\.com/(driftrate[\w-]*/[\w-]+)", path.read_text())
    }
    assert found == {"driftrate/driftrate"}


def test_nothing_downloads_but_what_the_page_on_security_names():
    calls = re.compile(r"urlopen|HTTPDownloader|pooch\.\w+\(|fetch_\w+\(|hf_hub|torch\.hub")
    home = ROOT / "src" / "driftrate"
    found = {
        str(path.relative_to(home)) for path in home.rglob("*.py") if calls.search(path.read_text())
    }
    assert found == {"data/cytometry.py", "race/_public.py", "race/networks/digits.py"}
    assert "These three, and no other" in (ROOT / "SECURITY.md").read_text()


def test_the_threat_model_names_tests_that_are_there():
    _, _, model = (ROOT / "SECURITY.md").read_text().partition("\n## Threat model\n")
    rows = re.findall(r"^\| \*\*(.*)\|$", model, re.MULTILINE)
    assert len(rows) > 5
    for row in rows:
        named = re.findall(r"`(tests/[^`]+)`", row)
        assert named, row
        for name in named:
            path, *parts = name.split("::")
            there = ast.parse((ROOT / path).read_text()).body
            for part in parts:
                (there,) = (one.body for one in there if getattr(one, "name", None) == part)
