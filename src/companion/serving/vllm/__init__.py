"""vLLM as the engine: its runs as our Rounds, our policies in its scheduler. Importing this imports no vLLM."""
