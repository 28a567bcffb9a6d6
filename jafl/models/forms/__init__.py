"""Operations of models written so that compilers make them quick, also for many clients side by side."""
