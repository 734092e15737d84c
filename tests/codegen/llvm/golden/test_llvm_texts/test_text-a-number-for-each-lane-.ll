; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %t.8 = alloca [16 x float], align 64
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.6 = icmp slt i64 0, %n
  br i1 %.6, label %i_body.4, label %i_done.5
i_body.4:
  %i.7 = phi i64 [ 0, %first.1 ], [ %i_next.19, %i_body.4 ]
  %.9 = mul nsw i64 %i.7, 8
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <8 x float>, ptr %.10, align 4
  store <8 x float> %.11, ptr %t.8, align 64
  %.12 = load <8 x float>, ptr %t.8, align 64
  %.13 = fmul contract <8 x float> %.12, %.12
  %.14 = getelementptr float, ptr %t.8, i64 8
  store <8 x float> %.13, ptr %.14, align 32
  %.15 = load <8 x float>, ptr %.14, align 32
  %.16 = load <8 x float>, ptr %t.8, align 64
  %.17 = fadd contract <8 x float> %.15, %.16
  %.18 = getelementptr float, ptr %C, i64 %.9
  store <8 x float> %.17, ptr %.18, align 4
  %i_next.19 = add nuw nsw i64 %i.7, 1
  %.20 = icmp slt i64 %i_next.19, %n
  br i1 %.20, label %i_body.4, label %i_done.5, !llvm.loop !0
i_done.5:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %t.8 = alloca [16 x float], align 64
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.6 = icmp slt i64 0, %n
  br i1 %.6, label %i_body.4, label %i_done.5
i_body.4:
  %i.7 = phi i64 [ 0, %first.1 ], [ %i_next.19, %i_body.4 ]
  %.9 = mul nsw i64 %i.7, 8
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <8 x float>, ptr %.10, align 4
  store <8 x float> %.11, ptr %t.8, align 64
  %.12 = load <8 x float>, ptr %t.8, align 64
  %.13 = fmul contract <8 x float> %.12, %.12
  %.14 = getelementptr float, ptr %t.8, i64 8
  store <8 x float> %.13, ptr %.14, align 32
  %.15 = load <8 x float>, ptr %.14, align 32
  %.16 = load <8 x float>, ptr %t.8, align 64
  %.17 = fadd contract <8 x float> %.15, %.16
  %.18 = getelementptr float, ptr %C, i64 %.9
  store <8 x float> %.17, ptr %.18, align 4
  %i_next.19 = add nuw nsw i64 %i.7, 1
  %.20 = icmp slt i64 %i_next.19, %n
  br i1 %.20, label %i_body.4, label %i_done.5, !llvm.loop !0
i_done.5:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
