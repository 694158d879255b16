"""Names, passwords, tokens, claim codes, how long sessions live, how wrong tries slow down: pure rules, so time is a number."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from configs.errors import UsageError, redact
from edge.web.accounts import limits, rules
from edge.web.accounts.limits import ACCOUNT, ADDRESS, PAIR, Allowance, SignInLimits, network_of
from edge.web.accounts.rules import SessionRules, TooSoon

# --- what opens a door ------------------------------------------------------------------------------------------------


def test_a_token_is_parsed_as_it_is_written() -> None:
    token = rules.new_token()
    assert rules.parse_token(str(token)) == token
    assert rules.parse_token(str(rules.new_token("local"))).id == "local"  # type: ignore[union-attr]
    assert token.secret not in repr(token)
    assert len({str(rules.new_token()) for _ in range(100)}) == 100


@given(st.text(max_size=80))
def test_hardly_any_text_is_a_token(text: str) -> None:
    assert rules.parse_token(text) is None


@pytest.mark.parametrize(
    "broken", [lambda t: t[:-1], lambda t: t + "x", str.upper, lambda t: t + "\n", lambda t: " " + t, lambda t: t[1:]]
)
def test_a_token_that_was_changed_is_none(broken: object) -> None:
    assert rules.parse_token(broken(str(rules.new_token()))) is None  # type: ignore[operator]


def test_tokens_and_cookies_are_redacted_wherever_they_stand() -> None:
    token, session = str(rules.new_token()), rules.new_session_id()
    for text in (
        f"what is {token}?",
        f"Authorization: Bearer {token}",
        f"cookie: driftbox={session}; a=b",
        f"Set-Cookie: driftbox={session}",
    ):
        assert token[22:] not in redact(text)
        assert session not in redact(text)
    assert redact("driftbox_state is a word") == "driftbox_state is a word"


def test_a_claim_code_is_read_as_people_type_it() -> None:
    code = rules.new_claim_code()
    plain = code.replace("-", "")
    assert len(plain) == 16
    for typed in (code, plain, code.lower(), f" {code} ", plain.replace("0", "O").replace("1", "l"), code.replace("-", " ")):
        assert rules.claim_code_of(typed) == plain


@given(st.text(max_size=40))
def test_no_text_breaks_the_reading_of_a_code(text: str) -> None:
    code = rules.claim_code_of(text)
    assert code == "" or (len(code) == 16 and code.isalnum())


def test_what_is_kept_tells_nothing_and_is_compared_whole() -> None:
    assert rules.digest("a") != rules.digest("b")
    assert len(rules.digest("é\ud800")) == 64, "also what cannot be encoded"
    assert rules.same("a", "a")
    assert not rules.same("a", "ab")
    assert not rules.same("é", "\ud800")


def refusal(work: Callable[[], object]) -> UsageError | None:
    try:
        work()
    except UsageError as error:
        return error
    return None


# --- names and passwords ----------------------------------------------------------------------------------------------


@given(st.text(max_size=50))
def test_a_name_is_kept_in_one_form(text: str) -> None:
    error = refusal(lambda: rules.account_name(text))
    if error is not None:
        assert error.code == "name"
        return
    name = rules.account_name(text)
    assert rules.account_name(name) == name == name.strip().lower()
    assert not set(name) & set("/\\<>\"' \n\0")


@given(st.text(max_size=250), st.sampled_from(["kim", "administrator"]))
def test_no_password_comes_back_in_an_error(password: str, name: str) -> None:
    error = refusal(lambda: rules.check_new_password(password, name))
    if error is not None:
        assert error.code == "password"
        assert len(password) < 8 or password not in str(error)
    else:
        assert len(rules.password_of(password)) >= rules.LEAST_PASSWORD


@pytest.mark.parametrize(
    "password",
    [
        "correct horse battery",
        "пароль подлиннее",
        "三個傘架下的燈籠很亮啊",
        "🦊🐸🦉🐢 under lamps",
        "aB3$efGh1j",
        " leading space",
    ],
)
def test_good_passwords_of_all_kinds(password: str) -> None:
    rules.check_new_password(password, "kim")


@pytest.mark.parametrize(
    "password",
    [
        "",
        "short",
        "Password123",
        "kim",
        "kim1234567890",
        "1234567890",
        "abababababab",
        "a" * 201,
        "new\nline in it",
        "x\0yzabcdefgh",
    ],
)
def test_bad_passwords(password: str) -> None:
    with pytest.raises(UsageError):
        rules.check_new_password(password, "kim")


def test_a_password_is_the_same_from_every_keyboard() -> None:
    assert rules.password_of("Zo\u00eb likes long words") == rules.password_of("Zoe\u0308 likes long words")


# --- sessions ---------------------------------------------------------------------------------------------------------

RULES = SessionRules()
TIMES = st.floats(0, 4e9)


@given(created=TIMES, seen=TIMES, now=TIMES)
def test_a_session_lives_within_both_limits_and_not_in_the_future(created: float, seen: float, now: float) -> None:
    alive = RULES.alive(created_utc=created, seen_utc=seen, now_utc=now)
    assert alive == (-300 <= now - seen < RULES.idle_s and -300 <= now - created < RULES.most_s)
    if alive and now >= max(created, seen):
        assert now <= RULES.ends_utc(created_utc=created, seen_utc=seen) + 1e-3


@given(steps=st.lists(st.floats(0, 2 * RULES.idle_s), max_size=80))
def test_however_it_is_used_it_ends_in_time(steps: list[float]) -> None:
    now = seen = 1e9
    for step in steps:
        now += step
        if not RULES.alive(created_utc=1e9, seen_utc=seen, now_utc=now):
            assert step >= RULES.idle_s or now - 1e9 >= RULES.most_s
            return
        seen = now
    assert now - 1e9 < RULES.most_s


# --- limits -----------------------------------------------------------------------------------------------------------


def guess(table: SignInLimits, account: str, address: str, start_s: float, seconds: float) -> int:
    """Tries that are looked at when somebody tries as often as it goes."""
    now_s, looked_at = start_s, 0
    while now_s < start_s + seconds:
        wait_s = table.begin(account, address, now_s=now_s)
        looked_at += wait_s == 0
        now_s += max(wait_s, 0.01)
    return looked_at


def test_the_waits_of_an_example() -> None:
    table = SignInLimits()
    assert [table.begin("kim", "192.0.2.1", now_s=0.0) for _ in range(7)] == [0.0] * 5 + [2.0] * 2
    assert table.begin("kim", "192.0.2.1", now_s=2.0) == 0.0
    assert table.begin("kim", "192.0.2.1", now_s=2.0) == 4.0
    table.succeeded("kim", "192.0.2.1")


def test_a_day_of_guessing_from_one_address_is_a_hundred_guesses() -> None:
    assert guess(SignInLimits(), "kim", "192.0.2.1", 0.0, 86_400.0) < 120


def test_a_day_of_guessing_names_from_one_address_is_few_guesses() -> None:
    table, now_s, looked_at = SignInLimits(), 0.0, 0
    while now_s < 86_400:
        wait_s = table.begin(f"name{looked_at}", "192.0.2.1", now_s=now_s)
        looked_at += wait_s == 0
        now_s += max(wait_s, 0.01)
    assert looked_at < 150


def test_guessing_from_everywhere_keeps_the_right_person_out_for_half_a_minute_at_most() -> None:
    table = SignInLimits()
    now_s = 0.0
    for number in range(3000):
        now_s += table.begin("kim", f"198.51.{number // 250}.{number % 250}", now_s=now_s)
    assert table.begin("kim", "192.0.2.1", now_s=now_s) <= ACCOUNT.most_s
    assert table.begin("kim", "192.0.2.1", now_s=now_s + ACCOUNT.most_s) == 0.0


def test_from_an_address_it_was_opened_before_nobody_else_keeps_one_out() -> None:
    table = SignInLimits()
    assert table.begin("kim", "192.0.2.1", now_s=0.0) == 0.0
    table.succeeded("kim", "192.0.2.1")
    for number in range(3000):
        table.begin("kim", f"198.51.{number // 250}.{number % 250}", now_s=1.0)
    assert table.begin("kim", "192.0.2.1", now_s=1.0) == 0.0
    assert table.begin("kim", "192.0.2.99", now_s=1.0) > 0.0


def test_an_own_account_is_no_way_around_the_limit() -> None:
    table, looked_at = SignInLimits(), 0
    for _ in range(500):
        if table.begin("eve", "192.0.2.1", now_s=0.0) == 0:
            table.succeeded("eve", "192.0.2.1")
        looked_at += table.begin("kim", "192.0.2.1", now_s=0.0) == 0
    assert looked_at == PAIR.free


def test_many_at_once_gain_nothing() -> None:
    table = SignInLimits()
    assert sum(table.begin("kim", "192.0.2.1", now_s=0.0) == 0 for _ in range(1000)) == PAIR.free


def test_of_ipv6_a_network_is_one() -> None:
    assert network_of("2001:db8:1:2::1") == network_of("2001:db8:1:2:ffff::9") != network_of("2001:db8:1:3::1")
    assert network_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert network_of("fe80::1%eth0") == network_of("fe80::2%eth1")
    assert network_of("") == ""
    assert network_of("testclient") == "testclient"


def test_memory_is_bounded() -> None:
    table = SignInLimits()
    for number in range(20_000):
        table.begin(f"a{number}", f"10.{number >> 16}.{(number >> 8) & 255}.{number & 255}", now_s=0.0)
        table.succeeded(f"a{number}", "192.0.2.1")
    assert len(table._tallies) <= limits.MOST_KEYS
    assert len(table._known) <= limits.MOST_KEYS


@given(st.builds(Allowance, free=st.integers(0, 10), first_s=st.floats(0.1, 10), most_s=st.floats(10, 1000), forget_s=st.just(3600.0)),
       st.integers(0, 10_000))  # fmt: skip
def test_waits_grow_and_end(allowance: Allowance, wrong: int) -> None:
    assert 0 <= allowance.wait_s(wrong) <= allowance.wait_s(wrong + 1) <= allowance.most_s
    assert (allowance.wait_s(wrong) == 0) == (wrong < allowance.free)


def test_how_long_is_told_in_words() -> None:
    assert "12 s" in str(TooSoon(12.3))
    assert "15 min" in str(TooSoon(900))
    assert TooSoon(0.01).retry_s == 1.0


class Guessing(RuleBasedStateMachine):
    """Several people and guessers at once: whoever waits as told is looked at, and nobody is looked at more often than allowed."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.now_s = SignInLimits(), 0.0
        self.looked_at: dict[tuple[str, str], list[float]] = {}

    @rule(
        account=st.sampled_from("abc"), address=st.sampled_from(["192.0.2.1", "192.0.2.2", "2001:db8::1"]), right=st.booleans()
    )
    def tries(self, account: str, address: str, right: bool) -> None:
        wait_s = self.table.begin(account, address, now_s=self.now_s)
        assert wait_s <= max(PAIR.most_s, ADDRESS.most_s, ACCOUNT.most_s)
        if wait_s > 0:
            assert self.table.begin(account, address, now_s=self.now_s) == wait_s, "asking while one waits costs nothing"
            return
        if right:
            self.table.succeeded(account, address)
            self.looked_at.pop((account, address), None)
        else:
            self.looked_at.setdefault((account, address), []).append(self.now_s)

    @rule(seconds=st.floats(0.01, 2000))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(account=st.sampled_from("abc"), address=st.sampled_from(["192.0.2.1", "192.0.2.3"]))
    def waits_as_told(self, account: str, address: str) -> None:
        self.now_s += self.table.begin(account, address, now_s=self.now_s) + 0.001
        assert self.table.begin(account, address, now_s=self.now_s + PAIR.most_s) == 0.0
        self.looked_at.setdefault((account, address), []).append(self.now_s)
        self.now_s += PAIR.most_s

    @invariant()
    def nobody_guesses_quickly(self) -> None:
        for times in self.looked_at.values():
            for first, last in zip(times, times[PAIR.free :], strict=False):
                assert last - first >= PAIR.first_s - 1e-6, "after the free ones there is a wait between two"


TestGuessing = Guessing.TestCase
