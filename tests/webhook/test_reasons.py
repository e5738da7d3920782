"""The table of reasons for people is the table in the code."""

from pathlib import Path

from webhook import reasons
from webhook.reasons import Outcome, Reason

README = Path(reasons.__file__).with_name("README.md")


def row(reason: Reason) -> str:
    status = str(reason.status) if reason.outcome is Outcome.DENIED else ""
    return f"| {reason.code} | {reason.outcome} | {status} | {reason.meaning} | {reason.remedy} |"


def test_readme_has_exactly_the_reasons_of_the_code() -> None:
    """Generated text: `python -m tests.webhook.test_reasons` prints it."""
    text = README.read_text().partition("## Reasons")[2].partition("\n## ")[0]
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert table[2:] == [row(reason) for reason in reasons.ALL]


def test_denials_carry_a_client_error_and_a_remedy() -> None:
    for reason in reasons.ALL:
        denied = reason.outcome is Outcome.DENIED
        assert denied == (400 <= reason.status < 500)
        assert reason.remedy or not denied


if __name__ == "__main__":
    print("\n".join(row(reason) for reason in reasons.ALL))
