"""What results say of claims: verdicts, corrected for all claims of a paper."""
