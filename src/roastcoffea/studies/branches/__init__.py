"""What an analysis reads, branch by branch."""

from roastcoffea.studies.branches.branch_study import BranchStudy

__all__ = ["BranchStudy"]
