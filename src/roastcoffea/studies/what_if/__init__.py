"""What a run would take on other resources, or with other chunks."""
