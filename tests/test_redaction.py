"""What is replaced in texts, and what is not."""

from __future__ import annotations

import os
import pickle
import random
import re
import string
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from roastcoffea import redaction
from roastcoffea.errors import LONGEST_ERROR, error_text
from roastcoffea.log.byvalue import packed_by_value
from roastcoffea.redaction import (
    MASK,
    PATTERNS,
    add_pattern,
    added_patterns,
    redacted,
    redacted_beginning,
    redacted_each,
    redacted_values,
    remove_pattern,
)

PAGE = Path(__file__).parent.parent / "docs" / "howto" / "publish.md"
ROW = re.compile(r"^(?P<kind>[\w ]+) \| `(?P<text>[^`]+)` \| `(?P<recorded>[^`]+)`$", re.MULTILINE)
DOCUMENTED = [row.groups() for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))]


pytestmark = pytest.mark.usefixtures("no_patterns")


def test_the_page_documents_each_pattern() -> None:
    assert sorted(kind for kind, _, _ in DOCUMENTED) == sorted(pattern.name for pattern in PATTERNS)


@pytest.mark.parametrize(("kind", "text", "recorded"), DOCUMENTED)
def test_a_documented_example_is_recorded_as_the_page_says(kind: str, text: str, recorded: str) -> None:
    assert redacted(text) == recorded
    (pattern,) = (pattern for pattern in PATTERNS if pattern.name == kind)
    assert any(sign in text for sign in pattern.signs)
    assert re.search(pattern.expression, text)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_a_sign_is_never_passed_over(pattern: redaction.Pattern) -> None:
    for sign in pattern.signs:
        assert any(hint in sign for hint in redaction.HINTS)


NAMES = re.findall(r"`([\w-]+)`", PAGE.read_text(encoding="utf-8").split("- `password`")[1].split("Upper and lower")[0])


@pytest.mark.parametrize("name", ["password", *NAMES])
def test_documented_names_are_those_of_secrets_in_urls_and_in_quotes(name: str) -> None:
    for text in (f"http://h/f.root?{name}=%s&n=1", f"http://h/f?n=1&{name.upper()}=%s", f"{{'{name}': '%s', 'n': 1}}"):
        if name != "id":
            assert redacted(text % "abc") == text % MASK


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("root://token@host//store/f.root", "root://***@host//store/f.root"),
        ("root://u:p@ss@host:1094//f.root", "root://***@host:1094//f.root"),
        ("root://xcache.org:1094//root://u:p@host//f", "root://xcache.org:1094//root://***@host//f"),
        ("simplecache::s3://ID:SECRET@bucket/f.root", "simplecache::s3://***@bucket/f.root"),
        ("root://h//f?authz=Bearer%20abc.def&xrd.x=1", "root://h//f?authz=***&xrd.x=1"),
        ("https://h/f?X-Amz-Credential=A%2Fb&X-Amz-Date=1&X-Amz-Signature=0f", None),
        ("https://blob/f?sv=2022-11-02&sr=b&sig=a%2Bb%3D&se=2026", "https://blob/f?sv=2022-11-02&sr=b&sig=***&se=2026"),
        ("http://h/f?token=abc#part", "http://h/f?token=***#part"),
        ("{'client_kwargs': {'headers': {'Authorization': 'Bearer x'}}}", None),
        ("{b'Authorization': b'Bearer x', 'n': 1}", "{b'Authorization': b'***', 'n': 1}"),
        ("[('Authorization', 'Bearer x')]", "[('Authorization', '***')]"),
        ('{"token":"abc","n":1}', '{"token":"***","n":1}'),
        (r'"{\"token\": \"a b\", \"n\": 1}"', r'"{\"token\": \"***\", \"n\": 1}"'),
        (r"""{'password': 'it\'s "x"', 'n': 1}""", "{'password': '***', 'n': 1}"),
        ("""{'password': "it's", 'n': 1}""", """{'password': "***", 'n': 1}"""),
        ("BasicAuth(login='jane', password='a b', encoding='latin1')", None),
        ("{'auth': ('jane', 'pw'), 'n': 1}", "{'auth': *** 'n': 1}"),
        ("login failed: password=hunter2", "login failed: password=***"),
        ("login failed: password:hunter2", "login failed: password:***"),
        ("Proxy-Authorization: Basic abc=\nAccept: x", "Proxy-Authorization: ***\nAccept: x"),
        ("AccountName=x;AccountKey=abc==", "AccountName=x;AccountKey=***"),
        ('run.py --token "a b" --n 3', 'run.py --token "***" --n 3'),
        ("f(host='h', pass='a b', n=3)", "f(host='h', pass='***', n=3)"),
        ("Cookie: a=b; c=d\r\nAccept: x", "Cookie: ***\r\nAccept: x"),
        ("curl -H 'Cookie: a=b; c=d' http://h", "curl -H 'Cookie: ***' http://h"),
        ("curl -H 'Cookie: a=\"b c\"; d=e' http://h", "curl -H 'Cookie: ***' http://h"),
        (r"b'GET /\r\nCookie: a=b; c=d\r\nAccept: x'", r"b'GET /\r\nCookie: ***\r\nAccept: x'"),
        (r'"{\"h\": \"Cookie: a=b; c=d\", \"n\": 1}"', r'"{\"h\": \"Cookie: ***\", \"n\": 1}"'),
        ("aws_secret_access_key = abc/def", "aws_secret_access_key = ***"),
        ("curl -H 'Authorization: Bearer abc'", "curl -H 'Authorization: ***'"),
        ("-----BEGIN KEY-----\nabc\n--", "-----BEGIN KEY-----***"),
    ],
)
def test_forms_of_secrets(text: str, expected: str | None) -> None:
    found = redacted(text)
    if expected is not None:
        assert found == expected
    assert found != text
    assert redacted(found) == found


@pytest.mark.parametrize(
    "text",
    [
        "/data/f.root",
        "/store/user/a@b/f.root",
        "/data/token=3/f.root",
        "root://eospublic.cern.ch//eos/opendata/cms/Run2016G/DoubleEG/NANOAOD/UL2016-v1/100000/11324D29-3A40.root",
        "root://eospublic.cern.ch:1094//eos/a@b/f.root?xrd.wantprot=unix&chunk=3",
        "https://h/f.root?chunk=3",
        "tcp://10.0.0.1:8786",
        "/DYJetsToLL_M-50/Run2/NANOAODSIM",
        "key-0123abc",
        "('process-0123abc', 0)",
        "token of the lock",
        "the password is wrong",
        "KeyError: 'password'",
        "TokenError: unexpected end",
        "Bearer token is missing",
        "signature: (events, weight)",
        "no field 'key' in ['token', 'pt']",
        "{'token': None, 'password': None}",
        "BEARER_TOKEN_FILE=/tmp/bt_u1000",
        "root://h//f?xrd.gsiusrpxy=/tmp/x509up_u1000",
        "uproot.exceptions.KeyInFileError: not found: 'Events' (with any cycle number)\n\n    Available keys: 'a', 'b'",
        "n_tokens=3, author: Smith, keys: 4",
    ],
)
def test_ordinary_texts_stay_as_they_are(text: str) -> None:
    assert redacted(text) == text
    assert redacted_values({"a": [text]}) == {"a": [text]}


TOKEN = "q9" * 14

KINDS_OF_FORMS = {
    "option of a command": (
        "run.py --token SECRET --n 3",
        "run.py --token=SECRET --n 3",
        "run.py --client-secret SECRET",
        "run.py --password SECRET",
        "['run.py', '--token', 'SECRET', '-n']",
        '["--token", "SECRET"]',
        "'--auth-token' 'SECRET'",
        'run.py --token "abcSECRET" --n 3',
        "run.py --token 'abcSECRET' --n 3",
        'run.py --password "abc \'SECRET" --n 3',
        r'sh -c "run.py --token \"abc SECRET\" --n 3"',
        "run.py --pass b'SECRET'",
        "curl --cookie 'a=SECRET; b=SECRET' http://h",
    ),
    "password": ("login pass=SECRET;", "user=jane pass=SECRET", "http://h/f?pass=SECRET", "{'pass': 'SECRET'}"),
    "password in quotes": tuple(
        text.replace("=", equals).replace("*", each)
        for text in ("pass='*'", 'pass="*"', "f(host='h', pass='*', n=3)", r"\"pass=\'*\'\"")
        for equals in ("=", " = ")
        for each in ("abcSECRET", "abc SECRET", "3 SECRET", "true SECRET")
    ),
    "cookies": tuple(
        form.format(name, value)
        for form in ("{}: {}", "GET /f.root\r\n{}: {}\r\nAccept: x", 'curl -H "{}: {}" http://h', "[b'{}: {}', b'n']")
        for name in ("Cookie", "cookie", "COOKIE", "Set-Cookie", "Cookie ")
        for value in (
            "session=SECRET; other=SECRET",
            "session=abc; other=SECRET; n=3",
            "session=; other=SECRET",
            "SECRET; other=SECRET",
            "session=it's; other=SECRET",
            "none; other=SECRET",
        )
    ),
    "cookies with quotes": (
        'Cookie:a="b SECRET"; c=SECRET',
        r'["Cookie: a=\"b SECRET\"; c=SECRET", "n"]',
        "{'Cookie': 'a=b; c=SECRET', 'n': 1}",
    ),
    "EOS": (
        "root://h//f?cap.sym=SECRET&cap.msg=SECRET",
        "cap.sym=SECRET&cap.msg=SECRET",
        "open failed, cap.msg=SECRET",
        "zteos64:SECRET",
        "the door refused zteos64:SECRET+/=",
        "zteos64%3ASECRET",
        "root://h//f?authz=zteos64:SECRET",
    ),
    "token": tuple(
        text.format(f"{prefix}{TOKEN}")
        for prefix in ("ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xoxb-", "hf_", "sk-", "sk-proj-")
        for text in ("{}", "the door refused {}: 403", "key {}.", "'{}'", "({})")
    ),
    "password in a URL": (
        "root://jane:SEC/RET@host.org//f",
        "root://jane:SEC RET@host.org:1094//f",
        "https://jane:SE/C RET@host.org/f",
        "no way to https://jane:/SECRET@host.org/f, twice",
    ),
    "encoded twice": (
        "http://h/f%253Fauthz%253DSECRET%2526n%253D2",
        "http%253A%252F%252Fh%252Ff%253Ftoken%253DSECRET",
        "q=http%25253A%25253Fauthz%25253DSECRET",
        "x?url=https%253A%252F%252Fjane%253ASECRET%2540example.org%252Fa.root",
    ),
    "options and headers": (
        "{'headers': {'X-Auth-Token': 'SECRET'}}",
        "{'client_kwargs': {'headers': {'Authorization': 'Bearer SECRET'}}, 'token': 'SECRET'}",
        "{'key': 'SECRET', 'secret': 'SECRET', 'anon': False}",
        "{'account_key': 'SECRET', 'sas_token': 'SECRET', 'connection_string': 'AccountKey=SECRET'}",
        "X-Auth-Token: SECRET",
        "Authorization=Bearer SECRET",
        "[('X-Auth-Token', 'SECRET')]",
        "[['X-Auth-Token', 'SECRET']]",
        "[(b'authorization', b'Bearer SECRET')]",
        "curl -H 'X-Auth-Token: SECRET'",
        "{'auth': BasicAuth(login='jane', password='SECRET')}",
    ),
}


@pytest.mark.parametrize("kind", KINDS_OF_FORMS)
def test_each_form_of_each_kind_of_secret(kind: str) -> None:
    for text in KINDS_OF_FORMS[kind]:
        for whole in (text, f"OSError: {text}", f"before {text}\nafter"):
            clean = redacted(whole)
            assert MASK in clean, whole
            assert "SEC" not in clean, (whole, clean)
            assert "RET" not in clean, (whole, clean)
            assert TOKEN not in clean, (whole, clean)
            assert redacted(clean) == clean
            assert redacted_values({"a": [whole]}) == {"a": [clean]}


STAYS = (
    ("disk-read", "disk-write", "task-12", "risk-of-a-very-long-name-with-digits-123", "mask-0123456789-0123456789"),
    ("pass=True", "pass=False", "pass=None", "pass=3 fail=2", "n_pass=12", "bypass=all", "compass=N", "passes=12"),
    ("pass='12' fail='3'", 'pass="true"', "pass='None'", "bypass='all'", 'compass="N"', "pass='', fail='x'"),
    ("cuts that pass: 'trigger', 'jets'", "cookies: a=3; b=4", "a cookie; n=3", "/a/cookie: n=3; m=4"),
    ("hf_jets", "hf_jets_from_heavy_flavour_regions", "sk-learn", "ghp_short", "xoxb-short", "glpat-x"),
    ("the option --token is required", "--tokens 3", "--password", "--token --n 3", "--pass-through x"),
    ("--tokens 'a'", "--token-file '/tmp/t'", '--pass-through "x"', "--token '' --n 'a'"),
    ("['token', 'pt']", "columns ['key', 'pt']", "['--tokens', 'a']", "/a/b--token/c d"),
    (
        "root://h.org:1094//eos/a@b/f.root",
        "root://h.org//store/a@b/f.root",
        "tcp://10.0.0.1:8786 lost, mail jane@h.org/",
    ),
    ("https://h.org: contact jane@cern.ch", "see http://a.org:8080 and jane@b.org/x", "https://h/f.root?chunk%253D3"),
)


@pytest.mark.parametrize("text", [text for texts in STAYS for text in texts])
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert redacted(text) == text
    assert redacted(f"OSError: {text} of a.root") == f"OSError: {text} of a.root"


SEALED = string.ascii_letters + string.digits + "-_.~"
WILD = SEALED + "!$*()+,;/:@?[]{}|^%"
TEMPLATES = (
    ("root://jane:%s@{host}//{path}", SEALED),
    ("root://%s@{host}:1094//{path}?n=1", SEALED),
    ("https://{host}/{path}?authz=%s", SEALED),
    ("https://{host}/{path}?n=1&X-Amz-Signature=%s&m=2", SEALED),
    ("https://{host}/{path}?n=1&access_token=Bearer%%20%s", SEALED),
    ("OSError: {host}/{path}: {{'key': '%s', 'anon': False}}", WILD),
    ("OSError: {host}/{path}: {{'headers': {{'Authorization': 'Bearer %s'}}}}", WILD),
    ('403 of {host}: {{"path": "{path}", "token": "%s"}}', WILD),
    ("RuntimeError: login at {host}/{path} failed, password=%s", WILD),
    ("GET {host}/{path}\nAuthorization: Bearer %s\nAccept: */*", WILD),
    ("{host}/{path} refused Bearer %s", SEALED),
    ("{host}/{path}: -----BEGIN RSA PRIVATE KEY-----\n%s\n-----END RSA PRIVATE KEY-----", SEALED),
)


@pytest.mark.parametrize(("template", "alphabet"), TEMPLATES)
def test_no_secret_survives_and_hosts_and_paths_do(template: str, alphabet: str) -> None:
    dice = random.Random(template)
    for _ in range(300):
        secret = "".join(dice.choices(alphabet, k=dice.randint(12, 60)))
        if alphabet is SEALED:
            secret = quote(secret, safe="")
        host = f"{''.join(dice.choices(string.ascii_lowercase, k=8))}.example.org"
        path = "/".join("".join(dice.choices(SEALED, k=dice.randint(1, 12))) for _ in range(4)) + ".root"
        text = template.format(host=host, path=path) % secret
        clean = redacted(text)
        assert MASK in clean
        assert host in clean
        assert path in clean
        assert not any(secret[at : at + 8] in clean for at in range(len(secret) - 7)), (text, clean)
        assert redacted(clean) == clean


@pytest.mark.slow
def test_long_texts_take_time_in_proportion() -> None:
    """A pattern that went back over a text would never end here."""
    for part in (
        "a",
        "a.",
        "'",
        "\\",
        "a:",
        "://a",
        "token=(",
        "token='",
        "&token",
        "-----BEGIN ",
        "<token>",
        "%3F",
        "--token '",
        'cookie: ="',
        "cookie:\\",
    ):
        assert len(redacted(part * (50_000 // len(part)) + " '@=</%3")) > 0


def test_values_in_structures() -> None:
    value = {
        "root://u:p@h//f": {"entries": 3, "files": ["http://h/f?sig=x", ("a", {"b"})]},
        "password": "x",
        "AWS_SECRET_ACCESS_KEY": b"x",
        "token": 3,
    }
    assert redacted_values(value) == {
        "root://***@h//f": {"entries": 3, "files": ["http://h/f?sig=***", ("a", {"b"})]},
        "password": MASK,
        "AWS_SECRET_ACCESS_KEY": MASK,
        "token": 3,
    }
    assert value["password"] == "x"
    plain = {"a": [1, ("b", {"c"})], 3: object()}
    assert redacted_values(plain) is plain
    plain["itself"] = plain
    assert redacted_values(plain) is plain


def test_texts_one_by_one() -> None:
    assert redacted_each(["http://h/f?sig=x", None, "a", "http://h/f?sig=x"]) == [
        "http://h/f?sig=***",
        None,
        "a",
        "http://h/f?sig=***",
    ]


def test_a_text_is_cut_after_its_secrets_are_taken_out() -> None:
    for before in range(LONGEST_ERROR - 40, LONGEST_ERROR):
        text = error_text(OSError(f"{'x' * before} root://jane:PLANTED@host//f"))
        assert "PLAN" not in text
        assert len(text) <= LONGEST_ERROR


def test_a_secret_that_the_search_ends_in_is_left_out() -> None:
    block = f"-----BEGIN KEY-----{'a' * 950}-----END KEY----- root://jane:PLANTED@host//f"
    assert redacted_beginning(block, 100) == f"-----BEGIN KEY-----{MASK}-----END KEY-----"


LONG = 20_000_000


def test_of_a_long_error_both_ends_are_kept_and_searched_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "root://jane:PLANTED@host//f"
    searched = []
    sub = re.sub

    def counted(expression: str, by: Any, text: str) -> str:
        searched.append(len(text))
        return sub(expression, by, text)

    monkeypatch.setattr(redaction.re, "sub", counted)
    cause = OSError(f"{url} {'root://u:PLANTED@h ' * (LONG // 19)}{url}")
    error = ValueError(f"first {url} {'a=b, ' * (LONG // 5)}last {url}")
    for each in (cause, error):
        error.__cause__ = None if each is error else cause
        text = error_text(error)
        assert len(text) <= LONGEST_ERROR
        assert text.startswith("ValueError: first root://***@host//f a=b, ")
        assert text.endswith(f"root://{MASK}@host//f")
        assert "PLAN" not in text
        assert searched
        assert max(searched) <= 2 * redaction.LOOK * LONGEST_ERROR


@pytest.mark.parametrize("shift", range(0, 60, 7))
def test_no_secret_is_cut_at_either_end(shift: int) -> None:
    url = "root://jane:PLANTED@host//f "
    for text in (
        url * 200,
        url * 100_000,
        f"{'-----BEGIN KEY-----'}{'PLANTED' * 30_000}-----END KEY-----{'y' * shift}",
    ):
        clean = error_text(OSError(f"{'x' * shift} {text}"))
        assert len(clean) <= LONGEST_ERROR
        assert "PLAN" not in clean
        assert "ANTED" not in clean


def test_an_error_keeps_its_own_text() -> None:
    error = OSError("cannot open root://jane:pw@host//f")
    assert error_text(error) == "OSError: cannot open root://***@host//f"
    assert str(error) == "cannot open root://jane:pw@host//f"


def test_patterns_are_added() -> None:
    add_pattern("ticket", r"TGT-\w+")
    add_pattern("session", r"sid:(?P<secret>\w+)")
    assert redacted("TGT-12 of sid:abc, root://u:p@h//f") == f"{MASK} of sid:{MASK}, root://{MASK}@h//f"
    assert added_patterns() == (("ticket", r"TGT-\w+"), ("session", r"sid:(?P<secret>\w+)"))
    assert redacted("TGT-12", ()) == "TGT-12"
    with pytest.raises(re.error):
        add_pattern("broken", "(")
    assert redacted("TGT-12") == MASK


def test_patterns_are_removed() -> None:
    add_pattern("ticket", r"TGT-\w+")
    remove_pattern("ticket")
    assert added_patterns() == ()
    assert redacted("TGT-12") == "TGT-12"
    for name in ("ticket", PATTERNS[0].name):
        with pytest.raises(ValueError, match=f"no pattern named '{name}' was added; added so far: none"):
            remove_pattern(name)


def test_by_value_it_needs_no_package() -> None:
    script = textwrap.dedent("""
        import builtins, pickle, sys
        plain = builtins.__import__
        def lacking(name, *args, **kwargs):
            if name.split(".")[0] == "roastcoffea":
                raise ModuleNotFoundError(name)
            return plain(name, *args, **kwargs)
        builtins.__import__ = lacking
        redacted, values = pickle.loads(sys.stdin.buffer.read())
        print(redacted("root://u:p@h//f"), values({"password": "x"}))
    """)
    packed = packed_by_value((redacted, redacted_values))
    assert len(packed) < 20_000
    done = subprocess.run([sys.executable, "-c", script], input=packed, capture_output=True, check=True, cwd=os.sep)
    assert done.stdout.decode().strip() == "root://***@h//f {'password': '***'}"
    here: Any = pickle.loads(packed)[0]
    assert here("root://u:p@h//f") == "root://***@h//f"
