"""The paper, reproduced: every experiment, claim by claim, with exact numbers."""
