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
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.46, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 8
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <8 x float>, ptr %.10, align 4
  %.12 = getelementptr float, ptr %B, i64 %i.8
  %.13 = load float, ptr %.12, align 4
  %.14 = insertelement <8 x float> poison, float %.13, i64 0
  %.15 = shufflevector <8 x float> %.14, <8 x float> poison, <8 x i32> zeroinitializer
  %.16 = fmul contract <8 x float> %.11, %.15
  %.17 = extractelement <8 x float> %.16, i64 0
  %.18 = call float @expf(float %.17)
  %.19 = insertelement <8 x float> poison, float %.18, i64 0
  %.20 = extractelement <8 x float> %.16, i64 1
  %.21 = call float @expf(float %.20)
  %.22 = insertelement <8 x float> %.19, float %.21, i64 1
  %.23 = extractelement <8 x float> %.16, i64 2
  %.24 = call float @expf(float %.23)
  %.25 = insertelement <8 x float> %.22, float %.24, i64 2
  %.26 = extractelement <8 x float> %.16, i64 3
  %.27 = call float @expf(float %.26)
  %.28 = insertelement <8 x float> %.25, float %.27, i64 3
  %.29 = extractelement <8 x float> %.16, i64 4
  %.30 = call float @expf(float %.29)
  %.31 = insertelement <8 x float> %.28, float %.30, i64 4
  %.32 = extractelement <8 x float> %.16, i64 5
  %.33 = call float @expf(float %.32)
  %.34 = insertelement <8 x float> %.31, float %.33, i64 5
  %.35 = extractelement <8 x float> %.16, i64 6
  %.36 = call float @expf(float %.35)
  %.37 = insertelement <8 x float> %.34, float %.36, i64 6
  %.38 = extractelement <8 x float> %.16, i64 7
  %.39 = call float @expf(float %.38)
  %.40 = insertelement <8 x float> %.37, float %.39, i64 7
  %.41 = fmul contract <8 x float> %.40, %.16
  %.42 = fcmp ogt <8 x float> zeroinitializer, %.11
  %.43 = select <8 x i1> %.42, <8 x float> zeroinitializer, <8 x float> %.11
  %.44 = fadd contract <8 x float> %.41, %.43
  %.45 = getelementptr float, ptr %C, i64 %.9
  store <8 x float> %.44, ptr %.45, align 4
  %i_next.46 = add nuw nsw i64 %i.8, 1
  %.47 = icmp slt i64 %i_next.46, %.4
  br i1 %.47, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare float @expf(float) nounwind willreturn memory(none)

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
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.46, %i_body.5 ]
  %.9 = mul nsw i64 %i.8, 8
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <8 x float>, ptr %.10, align 4
  %.12 = getelementptr float, ptr %B, i64 %i.8
  %.13 = load float, ptr %.12, align 4
  %.14 = insertelement <8 x float> poison, float %.13, i64 0
  %.15 = shufflevector <8 x float> %.14, <8 x float> poison, <8 x i32> zeroinitializer
  %.16 = fmul contract <8 x float> %.11, %.15
  %.17 = extractelement <8 x float> %.16, i64 0
  %.18 = call float @expf(float %.17)
  %.19 = insertelement <8 x float> poison, float %.18, i64 0
  %.20 = extractelement <8 x float> %.16, i64 1
  %.21 = call float @expf(float %.20)
  %.22 = insertelement <8 x float> %.19, float %.21, i64 1
  %.23 = extractelement <8 x float> %.16, i64 2
  %.24 = call float @expf(float %.23)
  %.25 = insertelement <8 x float> %.22, float %.24, i64 2
  %.26 = extractelement <8 x float> %.16, i64 3
  %.27 = call float @expf(float %.26)
  %.28 = insertelement <8 x float> %.25, float %.27, i64 3
  %.29 = extractelement <8 x float> %.16, i64 4
  %.30 = call float @expf(float %.29)
  %.31 = insertelement <8 x float> %.28, float %.30, i64 4
  %.32 = extractelement <8 x float> %.16, i64 5
  %.33 = call float @expf(float %.32)
  %.34 = insertelement <8 x float> %.31, float %.33, i64 5
  %.35 = extractelement <8 x float> %.16, i64 6
  %.36 = call float @expf(float %.35)
  %.37 = insertelement <8 x float> %.34, float %.36, i64 6
  %.38 = extractelement <8 x float> %.16, i64 7
  %.39 = call float @expf(float %.38)
  %.40 = insertelement <8 x float> %.37, float %.39, i64 7
  %.41 = fmul contract <8 x float> %.40, %.16
  %.42 = fcmp ogt <8 x float> zeroinitializer, %.11
  %.43 = select <8 x i1> %.42, <8 x float> zeroinitializer, <8 x float> %.11
  %.44 = fadd contract <8 x float> %.41, %.43
  %.45 = getelementptr float, ptr %C, i64 %.9
  store <8 x float> %.44, ptr %.45, align 4
  %i_next.46 = add nuw nsw i64 %i.8, 1
  %.47 = icmp slt i64 %i_next.46, %.4
  br i1 %.47, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare float @expf(float) nounwind willreturn memory(none)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
