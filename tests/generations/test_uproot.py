"""How RNTuples of each release of uproot read columns."""

from __future__ import annotations

from roastcoffea.generations.uproot import column_readers


class Since57:
    def read_cluster_range(self) -> None: ...


class Before57:
    def read_col_pages(self) -> None: ...


def test_cluster_and_column_change_places_with_5_7() -> None:
    new, old = column_readers(Since57), column_readers(Before57)
    assert (new.of_clusters, new.of_cluster, new.place((4, 7, None))) == (
        "read_cluster_range",
        "read_cluster_pages",
        (4, 7),
    )
    assert (old.of_clusters, old.of_cluster, old.place((7, 4, None))) == ("read_col_pages", "read_col_page", (4, 7))


def test_the_installed_one_has_these_methods() -> None:
    from uproot.models.RNTuple import Model_ROOT_3a3a_RNTuple as Ntuple

    readers = column_readers(Ntuple)
    assert callable(getattr(Ntuple, readers.of_clusters))
    assert callable(getattr(Ntuple, readers.of_cluster))
