"""The local copy after lists, events and responses in any order."""

from __future__ import annotations

from dsf.kube.store import Object, Store, get_key

KEY = ("ns", "a")


def _object(version: int | str, uid: str = "1", name: str = "a") -> Object:
    return {"metadata": {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": str(version)}}


def test_key_of_an_object_without_namespace() -> None:
    assert get_key({"metadata": {"name": "c1"}}) == ("", "c1")


def test_store_returns_the_previous_object() -> None:
    store = Store()
    assert store.put(_object(1)) is None
    assert store.put(_object(2)) == _object(1)
    assert store.replace({KEY: _object(3)}) == {KEY: _object(2)}
    assert store.remove(KEY) == _object(3)
    assert store.remove(KEY) is None


def test_observed_later_version_stays() -> None:
    store = Store()
    store.put(_object(1))
    store.observe(_object(10))
    store.put(_object(9))
    assert store.get(KEY) == _object(10)
    store.replace({KEY: _object(9)})
    assert store.get(KEY) == _object(10)
    store.put(_object(11))
    assert store.get(KEY) == _object(11)


def test_unchanged_object_keeps_its_identity() -> None:
    store = Store()
    stored_object = _object(1)
    store.put(stored_object)
    store.replace({KEY: _object(1)})
    store.put(_object(1))
    store.observe(_object(1))
    assert store.get(KEY) is stored_object


def test_older_observation_is_ignored() -> None:
    store = Store()
    store.put(_object(10))
    store.observe(_object(9))
    assert store.get(KEY) == _object(10), "as numbers, not as text"


def test_observation_does_not_restore_a_deleted_object() -> None:
    store = Store()
    store.observe(_object(5))
    assert store.list() == []
    store.put(_object(7, uid="2"))
    store.observe(_object(8, uid="1"))
    assert store.get(KEY) == _object(7, uid="2"), "another object of the same name"


def test_recreated_object_replaces_the_old_one() -> None:
    store = Store()
    store.put(_object(10))
    store.put(_object(9, uid="2"))
    assert store.get(KEY) == _object(9, uid="2")


def test_versions_that_are_no_numbers_are_believed_as_they_come() -> None:
    store = Store()
    store.put(_object("b"))
    store.put(_object("a"))
    assert store.get(KEY) == _object("a")


def test_list_removes_objects_that_it_lacks() -> None:
    store = Store()
    store.put(_object(1))
    store.replace({("ns", "b"): _object(2, name="b")})
    assert [obj["metadata"]["name"] for obj in store.list()] == ["b"]
