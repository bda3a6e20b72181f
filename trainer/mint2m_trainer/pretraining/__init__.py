"""A small model that learns to read the project's own synthetic task before anything is trained on long prompts."""
