"""What users and operators look at: status, explain, verify, audits."""
