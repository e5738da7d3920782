"""Certificates look after themselves, whatever happens to Secret, caBundle, clock and other replicas."""

import pytest

from tests.webhook.certificates import LIFETIMES, NAMES, Clock, MemoryStore, Replica
from webhook import authority
from webhook.authority import Bundle, CorruptError

METRIC = "kai_isolator_webhook_certificate_expiry_timestamp_seconds"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def replica(store: MemoryStore, clock: Clock) -> Replica:
    replica = Replica(store, clock)
    replica.look()
    return replica


def trusted(replica: Replica, store: MemoryStore) -> bool:
    return all(pem and authority.issuer(replica.served, pem) is not None for pem in store.bundles)


def test_first_look_makes_stores_publishes_and_serves(replica: Replica, store: MemoryStore) -> None:
    """From an empty cluster to ready in one look."""
    assert replica.ready
    assert trusted(replica, store)
    assert store.secret is not None
    assert Bundle.read(store.secret).certificate == replica.served


def test_empty_secret_is_filled(clock: Clock) -> None:
    """A Secret that the chart made without data."""
    store = MemoryStore(secret={})
    replica = Replica(store, clock)
    replica.look()
    assert replica.ready
    assert store.secret


def test_a_look_at_a_right_state_writes_nothing(replica: Replica, store: MemoryStore) -> None:
    before = store.writes
    replica.look()
    assert store.writes == before


def test_replicas_starting_together_agree(store: MemoryStore, clock: Clock) -> None:
    """The loser of the race adopts the winner's Secret."""
    first, second = Replica(store, clock), Replica(store, clock)
    store.before_write = second.look
    first.look()
    assert first.served == second.served
    assert first.ready
    assert second.ready


def test_race_for_the_configuration_is_run_again(store: MemoryStore, clock: Clock) -> None:
    """Somebody else changes the configuration between our read and our write."""
    replica = Replica(store, clock)
    replica.look()
    store.bundles = [b""]

    def rival() -> None:
        store.bundles_version += 1

    store.before_write = rival
    replica.look()
    assert trusted(replica, store)


def test_certificate_is_renewed_well_before_expiry(replica: Replica, store: MemoryStore, clock: Clock) -> None:
    """With a third of its life left, at the same CA, so that it is served at once."""
    old = replica.served
    clock.advance(days=59)
    replica.look()
    assert replica.served == old
    clock.advance(days=2)
    replica.look()
    assert replica.served != old
    assert replica.ready


def test_nothing_expires_in_ten_years_of_looks(replica: Replica, store: MemoryStore, clock: Clock) -> None:
    """Renewal of certificates and CAs: at each look what is served is valid and trusted."""
    for _ in range(365):
        clock.advance(days=10)
        replica.look()
        assert replica.ready
        assert trusted(replica, store)


def test_new_ca_is_trusted_before_anything_of_it_is_served(replica: Replica, store: MemoryStore, clock: Clock) -> None:
    """Old and new CA overlap: at the first look only the caBundle grows."""
    replica.look()
    clock.advance(days=600)
    replica.look()  # a certificate of the old CA, which has 300 days left
    first_ca = authority.issuer(replica.served, store.bundles[0])
    clock.advance(days=1)
    replica.look()
    bundle = Bundle.read(store.secret or {})
    assert len(bundle.authorities()) == 2
    assert authority.issuer(replica.served, store.bundles[0]) == first_ca
    clock.advance(days=80)
    replica.look()
    clock.advance(seconds=30)
    replica.look()
    assert authority.issuer(replica.served, store.bundles[0]) == bundle.authorities()[-1]
    assert first_ca in Bundle.read(store.secret or {}).authorities()


def test_expired_ca_leaves_secret_and_configuration(replica: Replica, store: MemoryStore, clock: Clock) -> None:
    for _ in range(100):
        clock.advance(days=10)
        replica.look()
    assert all(ca.not_valid_after_utc > clock.now for ca in Bundle.read(store.secret or {}).authorities())
    assert len(store.bundles[0].split(b"BEGIN CERTIFICATE")) == 2


@pytest.mark.parametrize("blank", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_blanked_ca_bundle_is_repaired(replica: Replica, store: MemoryStore, blank: bytes) -> None:
    store.bundles = [blank, blank]
    replica.look()
    assert len(store.bundles) == 2
    assert trusted(replica, store)
    assert replica.ready


def test_not_ready_while_the_ca_bundle_cannot_be_repaired(replica: Replica, store: MemoryStore) -> None:
    """Ready means that the API server trusts what is served."""
    store.bundles, store.refuse_writes = [b""], True
    with pytest.raises(OSError, match="403"):
        replica.look()
    assert not replica.ready


def test_deleted_secret_comes_back_as_it_was(replica: Replica, store: MemoryStore) -> None:
    """From memory, so that no other replica and no API server has to learn anything."""
    served = replica.served
    store.secret = None
    replica.look()
    assert Bundle.read(store.secret or {}).certificate == served == replica.served


@pytest.mark.parametrize("part", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("spoiled", [b"", b"garbage"])
def test_spoiled_secret_comes_back_as_it_was(replica: Replica, store: MemoryStore, part: str, spoiled: bytes) -> None:
    assert store.secret is not None
    good = dict(store.secret)
    store.secret[part] = spoiled
    replica.look()
    assert store.secret == good
    assert replica.ready


def test_spoiled_secret_at_start_is_made_anew(store: MemoryStore, clock: Clock) -> None:
    """Nobody remembers a good one."""
    store.secret = {"tls.crt": b"garbage", "tls.key": b"", "ca.crt": b"", "ca.key": b""}
    replica = Replica(store, clock)
    replica.look()
    assert replica.ready
    assert trusted(replica, store)


def test_read_only_secret_keeps_the_old_certificate_in_service(
    replica: Replica, store: MemoryStore, clock: Clock
) -> None:
    """A renewal that can't be stored isn't used: the other replicas would have another. The failure is told."""
    old = replica.served
    clock.advance(days=70)
    store.refuse_writes = True
    with pytest.raises(OSError, match="403"):
        replica.look()
    assert replica.served == old
    assert replica.ready
    store.refuse_writes = False
    replica.look()
    assert replica.served != old


def test_read_only_empty_secret_is_not_ready(store: MemoryStore, clock: Clock) -> None:
    """Each replica with a certificate of its own would be worse than none."""
    store.refuse_writes = True
    replica = Replica(store, clock)
    with pytest.raises(OSError, match="403"):
        replica.look()
    assert replica.contexts.served is None
    assert not replica.ready


def test_unreachable_api_server_changes_nothing(replica: Replica, store: MemoryStore) -> None:
    served, store.refuse_reads = replica.served, True
    with pytest.raises(OSError, match="timed out"):
        replica.look()
    assert replica.served == served
    assert replica.ready


def test_expired_certificate_is_not_ready(replica: Replica, store: MemoryStore, clock: Clock) -> None:
    clock.advance(days=91)
    store.refuse_reads = True
    with pytest.raises(OSError, match="timed out"):
        replica.look()
    assert not replica.ready


def test_foreign_but_good_secret_is_adopted_after_its_ca_is_trusted(
    replica: Replica, store: MemoryStore, clock: Clock
) -> None:
    """Somebody restores a backup: both CAs are trusted first, then the new certificate is served."""
    replica.look()
    old = replica.served
    store.secret = authority.create(NAMES, clock.now, LIFETIMES).data()
    store.secret_version += 1
    replica.look()
    assert replica.served == old
    assert trusted(replica, store)
    clock.advance(seconds=21)
    replica.look()
    assert replica.served == store.secret["tls.crt"]
    assert trusted(replica, store)


def test_new_service_name_gets_a_certificate_at_once(replica: Replica, store: MemoryStore) -> None:
    """A certificate for another name is as good as none."""
    replica.keeper.names = ["other.isolator.svc"]
    replica.look()
    assert "other.isolator.svc" in str(authority._names(Bundle.read(store.secret or {}).leaf()))


def test_expiry_is_told_as_a_metric(replica: Replica, clock: Clock) -> None:
    labels = {"certificate": "serving"}
    told = replica.metrics.registry.get_sample_value(METRIC, labels)
    assert told == (clock.now + LIFETIMES.certificate).timestamp()


def test_key_of_another_certificate_is_corrupt(clock: Clock) -> None:
    one, other = (authority.create(NAMES, clock.now, LIFETIMES) for _ in range(2))
    with pytest.raises(CorruptError, match="key"):
        Bundle.read(one.data() | {"tls.key": other.key})
    with pytest.raises(CorruptError, match="none of the CAs"):
        Bundle.read(one.data() | {"tls.crt": other.certificate, "tls.key": other.key})
