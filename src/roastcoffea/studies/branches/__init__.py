"""What an analysis reads, branch by branch."""
