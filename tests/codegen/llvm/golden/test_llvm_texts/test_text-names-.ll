; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.20, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 8
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <8 x float>, ptr %.10, align 4
  %.12 = mul i64 %i.8, 2
  %.13 = fmul contract <8 x float> %.11, %.11
  %.14 = getelementptr float, ptr %B, i64 %.12
  %.15 = load float, ptr %.14, align 4
  %.16 = insertelement <8 x float> poison, float %.15, i64 0
  %.17 = shufflevector <8 x float> %.16, <8 x float> poison, <8 x i32> zeroinitializer
  %.18 = fadd contract <8 x float> %.13, %.17
  %.19 = getelementptr float, ptr %C, i64 %.9
  store <8 x float> %.18, ptr %.19, align 4
  %i_next.20 = add nuw nsw i64 %i.8, 1
  %.21 = icmp slt i64 %i_next.20, %.4
  br i1 %.21, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.20, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 8
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <8 x float>, ptr %.10, align 4
  %.12 = mul i64 %i.8, 2
  %.13 = fmul contract <8 x float> %.11, %.11
  %.14 = getelementptr float, ptr %B, i64 %.12
  %.15 = load float, ptr %.14, align 4
  %.16 = insertelement <8 x float> poison, float %.15, i64 0
  %.17 = shufflevector <8 x float> %.16, <8 x float> poison, <8 x i32> zeroinitializer
  %.18 = fadd contract <8 x float> %.13, %.17
  %.19 = getelementptr float, ptr %C, i64 %.9
  store <8 x float> %.18, ptr %.19, align 4
  %i_next.20 = add nuw nsw i64 %i.8, 1
  %.21 = icmp slt i64 %i_next.20, %.4
  br i1 %.21, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
