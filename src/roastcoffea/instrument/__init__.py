"""What is done inside a chunk, and the client's half that puts it there."""
